"""Objectives that requests bring: what is accepted, and which field a refusal names."""

from typing import Any

import pytest

from vllm_kairos.errors import WireError
from vllm_kairos.wire.objectives import check_objectives, read_objectives


@pytest.mark.parametrize(
    ("extra_args", "found"),
    [
        (None, None),
        ({}, None),
        ({"other": 1}, None),
        ({"kairos_tbt_slo_s": 0.05}, (0.05, None)),
        ({"kairos_tpot_slo_s": 1, "kairos_tbt_slo_s": None}, (None, 1.0)),
    ],
)
def test_what_is_read(extra_args: Any, found: Any) -> None:
    assert read_objectives(extra_args) == found


@pytest.mark.parametrize("value", [0, -1, "0.05", True, [0.05], float("nan"), float("inf"), 1e9])
@pytest.mark.parametrize("key", ["kairos_tbt_slo_s", "kairos_tpot_slo_s"])
def test_a_refusal_names_the_field(key: str, value: Any) -> None:
    with pytest.raises(WireError, match=rf"vllm_xargs\.{key} must be a number of seconds > 0"):
        read_objectives({key: value})


@pytest.mark.parametrize("extra_args", [None, "kairos_x", [], {}, {"other": {}}, {"kairos_tbt_slo_s": 1, "other": "kairos_x"}])
def test_what_is_not_ours_passes(extra_args: Any) -> None:
    check_objectives(extra_args)


@pytest.mark.parametrize(
    ("extra_args", "said"),
    [
        ({"kairos_tbt_slo_s": "fast"}, r"vllm_xargs\.kairos_tbt_slo_s must be a number .* got 'fast'"),
        ({"kairos_tbt_slo_ms": 50}, r"vllm_xargs\.kairos_\* must be one of kairos_tbt_slo_s, .* got 'kairos_tbt_slo_ms'"),
    ],
)
def test_malformed_values_and_unknown_names_are_refused(extra_args: Any, said: str) -> None:
    with pytest.raises(WireError, match=said):
        check_objectives(extra_args)
