"""Objectives from headers."""

import pytest

from kairos_router.slo import Objectives, objectives
from vllm_kairos.errors import RequestError

DEFAULT = Objectives(ttft_s=4.0, tbt_s=0.07)


def test_the_configured_objectives_hold_unless_a_header_says_otherwise():
    assert objectives({}, DEFAULT) == DEFAULT
    assert objectives({"x-slo-ttft-ms": "250", "x-llm-d-slo-tpot-ms": "30"}, DEFAULT) == Objectives(0.25, 0.03)


def test_the_newer_header_wins():
    headers = {"x-slo-ttft-ms": "250", "x-llm-d-slo-ttft-ms": "500"}
    assert objectives(headers, DEFAULT).ttft_s == 0.5


@pytest.mark.parametrize("raw", ["", "fast", "0", "-1", "nan", "inf", "1e999"])
def test_a_value_that_is_no_duration_is_refused_by_name(raw):
    with pytest.raises(RequestError, match="x-slo-tpot-ms"):
        objectives({"x-slo-tpot-ms": raw}, DEFAULT)
