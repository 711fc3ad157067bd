"""Objectives of one request: where they are read, and what of them the engine is told."""

import pytest

from kairos_router.slo import Objectives, objectives
from vllm_kairos.errors import RequestError

DEFAULT = Objectives(ttft_s=4.0, tbt_s=0.07)
TBT, TPOT = "kairos_tbt_slo_s", "kairos_tpot_slo_s"


def test_the_configured_objectives_hold_unless_a_header_says_otherwise():
    assert objectives({}, DEFAULT) is DEFAULT
    assert objectives({"x-slo-ttft-ms": "250"}, DEFAULT) == Objectives(0.25, 0.07)
    assert objectives({"x-slo-ttft-ms": "250", "x-llm-d-slo-tpot-ms": "30"}, DEFAULT) == Objectives(0.25, 0.03, {TPOT: 0.03})
    assert objectives({"x-slo-tbt-ms": "30"}, DEFAULT) == Objectives(4.0, 0.03, {TBT: 0.03})


@pytest.mark.parametrize("values", [("250", "500"), ("500", "250")])
def test_of_two_names_for_one_objective_the_tighter_counts(values):
    ttft = dict(zip(("x-slo-ttft-ms", "x-llm-d-slo-ttft-ms"), values, strict=True))
    tpot = dict(zip(("x-slo-tpot-ms", "x-llm-d-slo-tpot-ms"), values, strict=True))
    assert objectives(ttft | tpot, DEFAULT) == Objectives(0.25, 0.25, {TPOT: 0.25})


@pytest.mark.parametrize("kind", ["ttft", "tpot"])
@pytest.mark.parametrize("raw", ["", "fast"])
def test_a_malformed_header_is_refused_whatever_the_other_says(kind, raw):
    names = f"x-slo-{kind}-ms", f"x-llm-d-slo-{kind}-ms"
    for bad, good in (names, names[::-1]):
        with pytest.raises(RequestError, match=f"header {bad} must be"):
            objectives({bad: raw, good: "30"}, DEFAULT)


@pytest.mark.parametrize(
    "name", ["x-slo-tpot-ms", "x-llm-d-slo-tpot-ms", "x-slo-tbt-ms", "x-slo-ttft-ms", "x-llm-d-slo-ttft-ms"]
)
@pytest.mark.parametrize("raw", ["", "fast", "0", "-1", "nan", "inf", "1e999", "5e-324", "1_000", "\u0667\u0660", "70,80"])
def test_a_value_that_is_no_duration_is_refused_by_name(name, raw):
    with pytest.raises(RequestError, match=f"header {name} must be a finite number of milliseconds > 0, got {raw!r}"):
        objectives({name: raw}, DEFAULT)


@pytest.mark.parametrize(
    ("headers", "xargs", "tbt_s", "told"),
    [
        ({}, {"other": 1}, 0.07, {}),
        ({}, {TBT: 0.05, TPOT: 0.02}, 0.02, {TBT: 0.05, TPOT: 0.02}),
        ({"x-slo-tbt-ms": "30"}, {TBT: 0.05}, 0.05, {TBT: 0.05}),
        ({"x-slo-tpot-ms": "20"}, {TBT: 0.05}, 0.02, {TBT: 0.05, TPOT: 0.02}),
        ({"x-slo-tpot-ms": "20"}, {TPOT: None}, 0.02, {TPOT: 0.02}),
        ({"x-slo-tpot-ms": "20"}, "not an object", 0.02, {TPOT: 0.02}),
    ],
)
def test_what_the_body_says_wins_over_headers(headers, xargs, tbt_s, told):
    found = objectives(headers, DEFAULT, xargs)
    assert (found.tbt_s, dict(found.for_engine)) == (tbt_s, told)


def test_a_mean_that_every_gap_keeps_anyway_is_not_told():
    assert objectives({"x-slo-tbt-ms": "30", "x-slo-tpot-ms": "30"}, DEFAULT).for_engine == {TBT: 0.03}
    assert objectives({"x-slo-tbt-ms": "30", "x-slo-tpot-ms": "25"}, DEFAULT).for_engine == {TBT: 0.03, TPOT: 0.025}


def test_an_objective_of_days_is_told_as_the_longest_that_engines_take():
    assert objectives({"x-slo-tbt-ms": "1e9"}, DEFAULT) == Objectives(4.0, 1e6, {TBT: 3600.0})


def test_a_malformed_objective_in_the_body_is_refused_by_name():
    with pytest.raises(RequestError, match=r"vllm_xargs\.kairos_tbt_slo_s must be a number of seconds"):
        objectives({}, DEFAULT, {TBT: "fast"})
