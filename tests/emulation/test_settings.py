"""Settings of an emulated engine."""

from typing import Any

import pytest

from vllm_kairos.emulation.faults import FaultKind
from vllm_kairos.emulation.settings import EmulationSettings, parse_emulation
from vllm_kairos.errors import ConfigError


def _parse(**emulation: Any) -> EmulationSettings:
    return parse_emulation({"kairos": {"node_id": "d0", "emulation": emulation}})


def test_a_profile_is_enough() -> None:
    assert _parse(profile="a100-llama3-8b") == EmulationSettings(profile="a100-llama3-8b")


def test_everything_given() -> None:
    read = _parse(
        profile="p.json",
        kv_capacity_tokens=1000,
        bias=1.1,
        noise=0.05,
        seed=3,
        realtime=False,
        faults=[{"kind": "crash", "at_step": 9}],
    )
    assert not read.realtime
    assert (read.kv_capacity_tokens, read.bias, read.noise, read.seed) == (1000, 1.1, 0.05, 3)
    assert read.faults[0].kind is FaultKind.CRASH


@pytest.mark.parametrize(
    ("emulation", "named"),
    [
        ({}, "profile"),
        ({"profile": ""}, "profile"),
        ({"profile": "p", "speed": 2}, "speed"),
        ({"profile": "p", "bias": 0}, "bias"),
        ({"profile": "p", "noise": float("nan")}, "noise"),
        ({"profile": "p", "kv_capacity_tokens": True}, "kv_capacity_tokens"),
        ({"profile": "p", "bandwidth_bytes_per_s": -1}, "bandwidth_bytes_per_s"),
        ({"profile": "p", "realtime": 1}, "realtime"),
        ({"profile": "p", "bias": 10**400}, r"bias must be a finite number > 0 and <= 1000, got 1000"),
        ({"profile": "p", "latency_s": -(10**400)}, "latency_s"),
        ({"profile": "p", "kv_capacity_tokens": 10**400}, r"kv_capacity_tokens must be a whole number in 1\.\."),
        ({"profile": "p", "seed": 10**400}, r"seed must be a whole number in 0\.\."),
        ({"profile": "p", "record": "steps\0.jsonl"}, "record must be a non-empty string without NUL"),
        ({"profile": "p", "faults": {}}, "faults"),
        ({"profile": "p", "faults": [{"kind": "crash"}, {"kind": "?"}]}, r"faults\[1\]"),
    ],
)
def test_what_is_wrong_is_named(emulation: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        _parse(**emulation)


@pytest.mark.parametrize("config", [None, {}, {"kairos": None}, {"kairos": {"node_id": "x"}}, {"kairos": {"emulation": 7}}])
def test_no_settings_at_all_are_refused(config: Any) -> None:
    with pytest.raises(ConfigError, match="profile"):
        parse_emulation(config)
