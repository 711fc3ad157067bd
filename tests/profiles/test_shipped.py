"""Every profile that ships loads, says what it is of and how good it is, and predicts steps that can be."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.profiles.paper_numbers import printed
from tests.strategies import batches
from vllm_kairos.core.shapes import BatchShape
from vllm_kairos.errors import ProfileError
from vllm_kairos.fitting.artifact import load_profile
from vllm_kairos.profiles import load_shipped, resolve_profile, shipped_names, shipped_profile_path

PAPER = "a100-deepseek-v2-lite-paper"
CPU = "cpu-smollm2-135m"
NOT_MEASURED = {  # model -> words of the artifact's source that say why it has no held-out error
    PAPER: {"prefill": "no held-out set", "decode": "no held-out set", "mixed": "no held-out set"},
    "h200-llama3.1-8b-fp8": {"mixed": "Mixed steps were not measured"},
}
PROFILES = {name: load_shipped(name) for name in shipped_names()}
every_profile = pytest.mark.parametrize("name", PROFILES)


def test_the_documented_profiles_ship():
    assert set(PROFILES) == {
        "a100-llama3-8b",
        "a100-llama3-70b-tp4",
        "h100-llama3.1-8b",
        "h100-llama3.1-70b-tp4",
        "h200-llama3.1-8b-fp8",
        "rtxpro6000-llama3.1-8b",
        PAPER,
        CPU,
    }


@every_profile
def test_a_profile_says_what_it_is_of_and_where_it_is_from(name):
    profile = PROFILES[name]
    assert profile.hardware
    assert profile.model
    assert profile.kv_bytes_per_token
    assert len(profile.source) > 100
    assert profile.kv_capacity_tokens or name == CPU


@every_profile
def test_a_profile_was_checked_on_what_its_fit_never_saw_or_says_why_not(name):
    profile = PROFILES[name]
    for model, accuracy in profile.accuracy.items():
        if accuracy.configurations:
            assert accuracy.mape < 0.10, model
        else:
            assert NOT_MEASURED[name][model] in profile.source


@every_profile
@given(batch=batches(), more=st.sampled_from(["running_decodes", "kv_tokens", "prefill_tokens", "done_tokens"]))
@settings(max_examples=25)
def test_a_larger_batch_never_takes_less(name, batch, more):
    model = PROFILES[name].step_model
    larger = replace(batch, **{more: getattr(batch, more) + 100})
    if more == "done_tokens":
        larger = replace(larger, kv_tokens=batch.kv_tokens + 100)
    assert model.step_s(larger) >= model.step_s(batch)


@every_profile
def test_a_decode_step_is_neither_instant_nor_endless(name):
    model = PROFILES[name].step_model
    one_s = model.step_s(BatchShape(running_decodes=1, kv_tokens=1000))
    many_s = model.step_s(BatchShape(running_decodes=16, kv_tokens=16_000))
    assert 0.003 < one_s < 0.08
    assert one_s < many_s < 2 * one_s


@every_profile
def test_a_chunk_beside_decodes_costs_more_than_none_and_less_than_ten_of_it_alone(name):
    model = PROFILES[name].step_model
    decode_s = model.step_s(BatchShape(running_decodes=8, kv_tokens=8000))
    mixed_s = model.step_s(BatchShape(running_decodes=8, kv_tokens=8000, prefill_tokens=512))
    alone_s = model.step_s(BatchShape(running_decodes=0, kv_tokens=0, prefill_tokens=512))
    assert decode_s < mixed_s < decode_s + 10 * alone_s


def test_the_paper_profile_keeps_every_number_it_was_made_to_meet():
    rows = PROFILES[PAPER].calibration
    assert {row.source for row in rows} >= {"section 3.2", "section 3.2, Figure 1", "Table 3"}
    for row in rows:
        missed = row.predicted - row.target
        if row.quantity.startswith("at most"):
            missed = max(0.0, missed)
        elif row.quantity.startswith("at least"):
            missed = min(0.0, missed)
        assert row.residual == pytest.approx(missed, abs=0.002), row.quantity


def test_the_paper_profile_predicts_what_it_says_that_it_predicts():
    stored = {row.quantity: row.predicted for row in PROFILES[PAPER].calibration}
    model = PROFILES[PAPER].step_model
    assert stored == {number.quantity: pytest.approx(number.predict(model), abs=0.001) for number in printed()}


def test_the_paper_profile_says_that_it_is_not_measured():
    profile = PROFILES[PAPER]
    assert profile.note.startswith("calibrated to printed numbers, not measured")
    assert profile.kv_bytes_per_token == 31_104


def test_the_paper_profile_leaves_small_chunks_the_room_that_the_paper_found():
    """Section 3.2: 17 to 21 ms of headroom under a TBT of 70 ms take several small chunks."""
    step_s = PROFILES[PAPER].step_model.step_s
    assert step_s(BatchShape(running_decodes=8, kv_tokens=8 * 3569, prefill_tokens=120)) < 0.070
    assert step_s(BatchShape(running_decodes=8, kv_tokens=8 * 3569 + 8160, prefill_tokens=2040, done_tokens=8160)) > 0.200


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ProfileError, match=r"profile must be one of a100-deepseek-v2-lite-paper, .*, got 'a100'"):
        load_shipped("a100")


def test_a_name_or_a_path_will_do(tmp_path):
    assert [resolve_profile(name) for name in shipped_names()] == [shipped_profile_path(name) for name in shipped_names()]
    assert load_profile(resolve_profile(str(shipped_profile_path(CPU)))) == PROFILES[CPU]
    assert resolve_profile("absent/profile.json").name == "profile.json"
    with pytest.raises(ProfileError, match="must be one of"):
        resolve_profile("absent")


def test_a_file_goes_before_a_shipped_profile_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / CPU).write_text("{}")
    with pytest.raises(ProfileError, match="schema is required"):
        load_profile(resolve_profile(CPU))


def test_the_documented_residuals_are_those_of_the_shipped_profile():
    text = (Path(__file__).parents[2] / "docs/profiles.md").read_text(encoding="utf-8")
    for row in PROFILES[PAPER].calibration:
        unit, digits = (f" {row.unit}", 1) if row.unit else ("", 2)
        shown = f"| {row.target:g}{unit} | {row.predicted:.{digits}f} | {row.residual:+.{digits}f} | {row.source} |"
        assert f"| {row.quantity} {shown}" in text
