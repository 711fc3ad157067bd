"""A profile survives the disk, and every way it can be wrong is named."""

import json
from dataclasses import replace

import pytest

from tests.strategies import profile
from vllm_kairos.core.shapes import BatchShape
from vllm_kairos.errors import ProfileError
from vllm_kairos.fitting.artifact import Calibration, load_profile, save_profile


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "profile.json"
    save_profile(profile(), path)
    return path


def _rewrite(path, change):
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def test_a_saved_profile_loads_as_it_was(path):
    assert load_profile(path) == profile()


CALIBRATED = replace(
    profile(),
    source="from printed numbers",
    kv_capacity_tokens=1_382_096,
    calibration=(
        Calibration(quantity="P50 TBT", target=49.0, predicted=48.0, unit="ms", residual=-1.0, source="section 3.2"),
        Calibration(quantity="at most: step", target=30.0, predicted=32.5, unit="ms", residual=2.5, source="Figure 1"),
    ),
)


def test_what_a_profile_was_calibrated_to_survives_the_disk(tmp_path):
    save_profile(CALIBRATED, tmp_path / "profile.json")
    assert load_profile(tmp_path / "profile.json") == CALIBRATED


def test_a_file_without_the_optional_fields_loads_and_one_without_values_has_none(path):
    document = json.loads(path.read_text())
    assert not {"source", "kv_capacity_tokens", "calibration"} & set(document)
    assert load_profile(path).kv_capacity_tokens == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["calibration"][1].pop("unit"), r"calibration\[1\].unit is required"),
        (lambda d: d["calibration"][0].update(residual=float("nan")), r"calibration\[0\].residual must be a number within"),
        (lambda d: d["calibration"][0].update(target="49"), r"calibration\[0\].target must be a number within"),
        (lambda d: d.update(calibration={}), "calibration must be a list, got dict"),
        (lambda d: d.update(calibration=[1]), r"calibration\[0\] must be an object, got int"),
        (lambda d: d.update(kv_capacity_tokens=-1), "kv_capacity_tokens must be an integer >= 0, got -1"),
        (lambda d: d.update(source=None), "source must be a string, got None"),
    ],
)
def test_a_wrong_optional_field_is_named(tmp_path, change, message):
    path = tmp_path / "profile.json"
    save_profile(CALIBRATED, path)
    _rewrite(path, change)
    with pytest.raises(ProfileError, match=message):
        load_profile(path)


def test_the_model_to_predict_with_has_the_gap_between_steps_in_every_step():
    fitted, gap_s = profile().fitted, 0.002
    model = replace(profile(), period_overhead_s=gap_s).step_model
    for batch in (
        BatchShape(running_decodes=0, kv_tokens=0, prefill_tokens=512),
        BatchShape(running_decodes=8, kv_tokens=4096),
        BatchShape(running_decodes=8, kv_tokens=4096, prefill_tokens=256),
    ):
        assert model.step_s(batch) == pytest.approx(fitted.step_s(batch) + gap_s)


def _nested(document, *names):
    for name in names:
        document = document[name]
    return document


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(schema=2), "schema must be 1, got 2"),
        (lambda d: d.pop("schema"), "schema is required, got nothing"),
        (lambda d: d.pop("hardware"), "hardware is required"),
        (lambda d: d["models"].pop("mixed"), "models.mixed is required"),
        (lambda d: d["models"]["decode"]["coefficients"].pop("fixed_s"), "models.decode.coefficients.fixed_s is required"),
        (
            lambda d: d["models"]["mixed"]["coefficients"].update(per_token_s=-1e-6),
            "models.mixed.coefficients.per_token_s must be a finite number >= 0, got -1e-06",
        ),
        (
            lambda d: d["models"]["prefill"]["coefficients"].update(per_token_s=float("nan")),
            "models.prefill.coefficients.per_token_s must be a finite number >= 0, got nan",
        ),
        (lambda d: d["models"]["prefill"]["coefficients"].update(per_token_s=True), "got True"),
        (
            lambda d: d["models"]["prefill"]["coefficients"].update(per_token_s=1e300),
            "per_token_s must be <= 1e+09, got 1e+300",
        ),
        (
            lambda d: d["models"]["prefill"]["coefficients"].update(per_token_s=10**400),
            "per_token_s must be <= 1e+09, got 1000",
        ),
        (lambda d: d.update(kv_bytes_per_token=10**400), "kv_bytes_per_token must be <= 9007199254740992, got 1000"),
        (lambda d: d["models"]["prefill"]["fitted_up_to"].update(kv_tokens=1.5), "must be an integer >= 0, got 1.5"),
        (lambda d: d.update(chunk_candidates_tokens=[]), "chunk_candidates_tokens must be one or more integers >= 1"),
        (lambda d: d.update(chunk_candidates_tokens=[64, "x"]), "chunk_candidates_tokens must be a list of int"),
        (lambda d: d.update(block_size_tokens=0), "block_size_tokens must be an integer >= 1, got 0"),
        (lambda d: d.update(models=[]), "models must be an object, got list"),
    ],
)
def test_a_broken_field_is_named_with_its_rule_and_value(path, change, message):
    _rewrite(path, change)
    with pytest.raises(ProfileError) as error:
        load_profile(path)
    assert str(path) in str(error.value)
    assert message in str(error.value)


def test_a_file_that_is_no_json_object_is_refused(path):
    path.write_text("[1, 2]")
    with pytest.raises(ProfileError, match="the document must be an object, got list"):
        load_profile(path)
    path.write_text("[" * 100_000)
    with pytest.raises(ProfileError, match="must be a JSON document"):
        load_profile(path)
    path.write_text("{")
    with pytest.raises(ProfileError, match="must be a JSON document"):
        load_profile(path)


def test_a_missing_file_and_a_folder_that_is_not_there_are_one_line_errors(tmp_path):
    with pytest.raises(ProfileError, match="cannot be read: No such file"):
        load_profile(tmp_path / "absent.json")
    with pytest.raises(ProfileError, match="cannot be written: No such file"):
        save_profile(profile(), tmp_path / "absent" / "profile.json")


def test_a_profile_of_another_model_is_refused(path):
    assert load_profile(path, model=profile().model)
    with pytest.raises(ProfileError, match="model must be 'other/model', got"):
        load_profile(path, model="other/model")
