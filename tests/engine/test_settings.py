"""Engine settings: defaults, and errors that name the field and the value."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vllm_kairos.core.node import Role
from vllm_kairos.engine.settings import check_profile, foreign_profiles, parse_settings, rank_endpoint
from vllm_kairos.errors import ConfigError, ProfileError


@pytest.mark.parametrize("config", [{}, None, {"other": {}}, {"kairos": None}])
def test_without_kairos_settings_nothing_is_enabled(config: Any) -> None:
    settings = parse_settings(config)
    assert (settings.enabled, settings.default_chunk_tokens, settings.state_endpoint) == (False, None, None)


@pytest.mark.parametrize(
    ("kairos", "chunk"),
    [
        ({}, None),
        ({"role": "both"}, None),
        ({"role": "both", "default_chunk_tokens": 64}, 64),
        ({"role": "decode"}, 512),
        ({"role": "decode", "default_chunk_tokens": 128}, 128),
        ({"role": "prefill", "default_chunk_tokens": 128}, None),
    ],
)
def test_default_chunk_follows_the_role(kairos: dict[str, Any], chunk: int | None) -> None:
    assert parse_settings({"kairos": kairos}).default_chunk_tokens == chunk


def test_every_setting(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("secret\n")
    kairos = {"node_id": "d0", "role": "decode", "state_endpoint": "tcp://127.0.0.1:5557", "heartbeat_period_s": 1}
    kairos |= {"max_wait_steps": 3, "floor_chunk_tokens": 4, "profile": str(key), "state_key_file": str(key)}
    settings = parse_settings({"kairos": kairos})
    assert (settings.node_id, settings.role, settings.heartbeat_period_s) == ("d0", Role.DECODE, 1.0)
    assert settings.state_key == b"secret"


def test_settings_of_an_emulated_engine_are_none_of_ours() -> None:
    assert parse_settings({"kairos": {"emulation": {"profile": "p"}}}) == parse_settings({})
    settings = parse_settings({"kairos": {"emulation": {"profile": "p"}, "node_id": "d0"}})
    assert (settings.enabled, settings.node_id) == (True, "d0")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("node_id", ""),
        ("node_id", 5),
        ("role", "decoder"),
        ("role", ["decode"]),
        ("state_endpoint", "127.0.0.1:5557"),
        ("state_endpoint", "tcp://127.0.0.1"),
        ("state_endpoint", "tcp://127.0.0.1:99999"),
        ("state_endpoint", "tcp://127.0.0.1:²"),
        ("heartbeat_period_s", 0),
        ("heartbeat_period_s", "0.1"),
        ("default_chunk_tokens", 0),
        ("default_chunk_tokens", True),
        ("max_wait_steps", 1.5),
        ("floor_chunk_tokens", -1),
        ("profile", "/no/such/file"),
        ("state_key_file", "/no/such/file"),
    ],
)
def test_error_names_field_and_value(field: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_settings({"kairos": {field: value}})
    assert f"additional_config.kairos.{field} must be" in str(caught.value)
    assert repr(value) in str(caught.value)


def test_unknown_setting_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"additional_config\.kairos\.chunk: no such setting"):
        parse_settings({"kairos": {"chunk": 5}})


def test_settings_must_be_an_object() -> None:
    with pytest.raises(ConfigError, match="must be an object"):
        parse_settings({"kairos": [1]})


def test_empty_key_is_refused(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("\n")
    with pytest.raises(ConfigError, match="must hold a key"):
        _ = parse_settings({"kairos": {"state_key_file": str(key)}}).state_key


def test_each_rank_has_an_endpoint_of_its_own() -> None:
    assert [rank_endpoint("tcp://*:5557", rank) for rank in (0, 3)] == ["tcp://*:5557", "tcp://*:5560"]
    assert [rank_endpoint("ipc:///tmp/x", rank) for rank in (0, 1)] == ["ipc:///tmp/x", "ipc:///tmp/x.1"]


def test_profile_of_another_model_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text("{}")
    settings = parse_settings({"kairos": {"profile": str(path)}})
    monkeypatch.setattr("vllm_kairos.engine.settings.load_profile", lambda path: SimpleNamespace(model="tiny"))
    check_profile(settings, "models/tiny", None)
    check_profile(settings, "models/other", "tiny")
    with pytest.raises(ConfigError, match=r"profile must be of model 'models/other', .* is of 'tiny'"):
        check_profile(settings, "models/other", None)


def test_profile_that_is_none_is_refused_by_path(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text("{}")
    with pytest.raises(ProfileError, match=str(path)):
        check_profile(parse_settings({"kairos": {"profile": str(path)}}), "tiny", None)


def test_a_governor_sizes_unplanned_prefill_and_finds_its_profile() -> None:
    kairos = {"role": "decode", "governor": {"tpot_slo_s": 0.025}, "emulation": {"profile": "a100-llama3-8b"}}
    settings = parse_settings({"kairos": kairos | {"floor_chunk_tokens": 4}})
    assert settings.default_chunk_tokens is None
    assert settings.governor is not None
    assert settings.governor.profile == "a100-llama3-8b"
    assert settings.governor.sizing.objective == (None, 0.025)
    assert (settings.governor.sizing.floor_tokens, settings.governor.sizing.mode) == (4, "guarded")
    alone = parse_settings({"kairos": {"governor": {"profile": "p"}}})
    assert alone.enabled
    assert alone.governor is not None
    assert alone.governor.sizing.objective == (0.07, None)
    measured = parse_settings({"kairos": {"governor": {"profile": "p", "beta": "measured"}}})
    assert measured.governor is not None
    assert (alone.governor.sizing.beta, measured.governor.sizing.beta) == (0.9, "measured")


@pytest.mark.parametrize("profile", [["p"], 7])
def test_an_emulated_profile_that_is_no_name_predicts_nothing(profile: Any) -> None:
    kairos = {"emulation": {"profile": profile}, "governor": True}
    with pytest.raises(ConfigError, match=r"governor\.profile must name a profile"):
        parse_settings({"kairos": kairos})


@pytest.mark.parametrize("off", [None, False])
def test_a_governor_that_is_off(off: Any) -> None:
    assert parse_settings({"kairos": {"governor": off}}).governor is None


@pytest.mark.parametrize(
    ("governor", "message"),
    [
        (True, r"governor\.profile must name a profile"),
        (5, "governor must be an object, true or false"),
        ({"speed": 1}, r"governor\.speed: no such setting"),
        ({"mode": "brave"}, r"governor\.mode must be one of strict, guarded, adaptive, got 'brave'"),
        ({"beta": 1.5}, r'governor\.beta must be "measured" or a number > 0 and <= 1, got 1\.5'),
        ({"beta": "guessed"}, r'governor\.beta must be "measured" or a number > 0 and <= 1, got \'guessed\''),
        ({"starvation_s": 0}, r"governor\.starvation_s must be a finite number > 0, got 0"),
        ({"tbt_slo_s": float("inf")}, r"governor\.tbt_slo_s must be"),
        ({"tpot_slo_s": 10**400}, r"governor\.tpot_slo_s must be a number in 0\.0001\.\.3600, got 1000"),
        *(({"tpot_slo_s": odd}, r"governor\.tpot_slo_s must be a number in") for odd in (0, -1, 1e308, 1e-12, "0.07", True)),
        ({"tightest_slo_s": 1e-12}, r"governor\.tightest_slo_s must be a number in"),
        ({"profile": "\ud800"}, r"governor\.profile must be a non-empty string without NUL and half characters"),
        ({"profile": "p\0"}, r"governor\.profile must be a non-empty string without NUL"),
        ({1: 2, "mode": "strict"}, r"governor\.1: no such setting"),
        ({"correct": 1}, r"governor\.correct must be true or false, got 1"),
    ],
)
def test_a_governors_error_names_field_and_value(governor: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_settings({"kairos": {"governor": governor}})


@pytest.mark.parametrize(
    ("name", "value"),
    [("horizon_s", 1e308), ("horizon_s", 0), ("ttl_s", 3601), ("tbt_slo_s", float("inf")), ("tbt_slo_s", 10**400)],
)
def test_leases_are_granted_over_times_whose_tokens_can_be_counted(name: str, value: Any) -> None:
    kairos = {"role": "decode", "state_endpoint": "ipc:///tmp/x", "leases": {"profile": "p", name: value}}
    with pytest.raises(ConfigError, match=rf"leases\.{name} must be a number > 0 and <= 3600, got "):
        parse_settings({"kairos": kairos})


def test_a_profile_of_another_model_is_told_unless_its_tokens_are_as_large() -> None:
    parts = {name: {"profile": "h100-llama3.1-8b"} for name in ("governor", "leases")}
    record = {"step_record": {"profile": "cpu-smollm2-135m"}}
    settings = parse_settings({"kairos": {"role": "decode", "state_endpoint": "ipc:///tmp/x", **parts, **record}})
    told = foreign_profiles(settings, "meta-llama/Llama-3.1-8B-Instruct", None, 131_072)
    assert list(told) == [("additional_config.kairos.step_record.profile", "cpu-smollm2-135m", "smollm2-135m-instruct")]
    assert len(list(foreign_profiles(settings, "other", None, 7))) == 3
    assert not list(foreign_profiles(parse_settings({"kairos": {}}), "other", None, 7))
