"""The load is a function of its seed, and fits the small model."""

from itertools import pairwise

import pytest

from vllm_kairos.demo.load import LoadSettings, make_load, one_by_one
from vllm_kairos.errors import ConfigError


def test_two_runs_are_the_same_load_with_other_words() -> None:
    first, second = make_load(LoadSettings(), run=0), make_load(LoadSettings(), run=1)
    assert [request.at_s for request in first] == [request.at_s for request in second]
    assert [len(request.prompt) for request in first] == [len(request.prompt) for request in second]
    assert [request.output_tokens for request in first] == [request.output_tokens for request in second]
    assert not {request.prompt[:8] for request in first} & {request.prompt[:8] for request in second}


def test_a_load_is_reproduced_by_its_seed() -> None:
    assert make_load(LoadSettings(seed=3), run=0) == make_load(LoadSettings(seed=3), run=0)
    assert make_load(LoadSettings(seed=3), run=0) != make_load(LoadSettings(seed=4), run=0)


def test_a_load_has_its_rate_and_stays_within_the_model() -> None:
    settings = LoadSettings(duration_s=2_000, rate_per_s=1.5)
    load = make_load(settings, run=0)
    assert len(load) / settings.duration_s == pytest.approx(settings.rate_per_s, rel=0.2)
    assert all(settings.min_prompt_tokens <= len(each.prompt) <= settings.max_prompt_tokens for each in load)
    assert all(2 <= each.output_tokens <= settings.max_output_tokens for each in load)
    assert sorted(each.at_s for each in load) == [each.at_s for each in load]


def test_a_load_is_bursty() -> None:
    load = make_load(LoadSettings(duration_s=5_000), run=0)
    gaps_s = [later.at_s - earlier.at_s for earlier, later in pairwise(load)]
    mean_s = sum(gaps_s) / len(gaps_s)
    variance = sum((gap - mean_s) ** 2 for gap in gaps_s) / len(gaps_s)
    assert variance / mean_s**2 > 4


def test_the_unloaded_sample_spans_the_prompt_lengths() -> None:
    load = make_load(LoadSettings(), run=0)
    lengths = [len(request.prompt) for request in one_by_one(load, 12)]
    every = sorted(len(request.prompt) for request in load)
    assert len(lengths) == 12
    assert lengths == sorted(lengths)
    assert lengths[0] <= every[len(every) // 8]
    assert lengths[-1] >= every[-len(every) // 8]


@pytest.mark.parametrize("name", ["duration_s", "rate_per_s", "scv", "prompt_scale", "output_scale"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_load_names_what_is_wrong(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be a finite number > 0"):
        LoadSettings(**{name: value})
