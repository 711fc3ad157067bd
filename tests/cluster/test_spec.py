"""Bad settings are refused in one line that names the field, the rule and the value."""

from pathlib import Path

import pytest

from vllm_kairos.cluster.spec import ClusterSpec, Device, make_spec, read_settings
from vllm_kairos.errors import ConfigError


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"decode": 0}, "decode must be >= 1, got 0"),
        ({"prefill": -1}, "prefill must be >= 0, got -1"),
        ({"prefill": 0}, "prefill must be >= 1 with a router, got 0"),
        ({"kv_cache_gib": 0}, "kv_cache_gib must be >= 1, got 0"),
        ({"base_port": 0}, "base_port must be between 1 and 65535, got 0"),
        ({"router_port": 70000}, "router_port must be between 1 and 65535, got 70000"),
        ({"pins": ("0",)}, "pins must name one entry for each of 2 servers, got 1"),
        ({"policy": "never", "router": False}, "policy needs the router, got policy 'never' without a router"),
        ({"aggregated": True}, "aggregated needs prefill 0 and no router, got a router"),
        ({"aggregated": True, "router": False}, "aggregated needs prefill 0 and no router, got 1 prefill servers"),
        ({"profile": "/no/profile.json"}, "profile must be an existing file, got '/no/profile.json'"),
        (
            {"vllm_args": ("--additional-config", "{}")},
            "vllm_args must not hold --additional-config, which the setting 'engine' is for, got '--additional-config'",
        ),
        (
            {"decode_args": ("--additional_config={}",)},
            "decode_args must not hold --additional-config, which the setting 'engine' is for, got '--additional_config={}'",
        ),
        ({"startup_timeout_s": float("nan")}, "startup_timeout_s must be a finite number > 0, got nan"),
    ],
)
def test_a_spec_names_what_is_wrong(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_spec(fields)
    assert str(caught.value) == message


@pytest.mark.parametrize("policy", ["nope", "oracle", "static-queue:many", ""])
def test_a_policy_is_one_that_a_router_can_run(policy: str) -> None:
    with pytest.raises(ConfigError, match=f"^policy must be .*, got '{policy}'$"):
        make_spec({"policy": policy})
    assert make_spec({"policy": "threshold:512"}).policy == "threshold:512"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prefil: 1", "prefil: no such setting"),
        ("prefill: two", "prefill must be a whole number, got 'two'"),
        ("prefill: true", "prefill must be a whole number, got True"),
        ("router: 1", "router must be true or false, got 1"),
        ("device: tpu", "device must be one of cpu, cuda, got 'tpu'"),
        ("pins: 0", "pins must be a list of words, got 0"),
        ("model: 7", "model must be a text, got 7"),
        ("startup_timeout_s: soon", "startup_timeout_s must be a number, got 'soon'"),
        ("- prefill", "must be a mapping of settings, got list"),
        ("prefill: [", "must be YAML"),
        ("model: 2020-99-99", "must be YAML: month must be in 1..12"),
        ("[" * 3000, "must be YAML"),
    ],
)
def test_a_settings_file_names_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "up.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_settings(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_settings_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read: No such file"):
        read_settings(tmp_path / "none.yaml")


def test_a_settings_file_says_all_that_flags_say(tmp_path: Path) -> None:
    path = tmp_path / "up.yaml"
    path.write_text("{prefill: 2, decode: 1, device: cuda, pins: [0, 1, '2,3'], startup_timeout_s: 5, vllm_args: [--seed, 1]}")
    assert make_spec(read_settings(path)) == ClusterSpec(
        prefill=2, device=Device.CUDA, pins=("0", "1", "2,3"), startup_timeout_s=5, vllm_args=("--seed", "1")
    )


def test_an_empty_settings_file_means_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "up.yaml"
    path.write_text("")
    assert make_spec(read_settings(path)) == ClusterSpec()
