"""The load is a function of its seed, and fits the small model."""

import pytest

from vllm_kairos.core.shapes import BatchShape
from vllm_kairos.demo.load import LoadSettings, make_load, mean_prompt_s, one_by_one
from vllm_kairos.errors import ConfigError


def test_two_runs_are_the_same_load_with_other_words() -> None:
    first, second = make_load(LoadSettings(rate_per_s=3.0), run=0), make_load(LoadSettings(rate_per_s=3.0), run=1)
    assert [request.at_s for request in first] == [request.at_s for request in second]
    assert [len(request.prompt) for request in first] == [len(request.prompt) for request in second]
    assert [request.output_tokens for request in first] == [request.output_tokens for request in second]
    assert not {request.prompt[:8] for request in first} & {request.prompt[:8] for request in second}


def test_a_load_is_reproduced_by_its_seed() -> None:
    assert make_load(LoadSettings(rate_per_s=3.0, seed=3), run=0) == make_load(LoadSettings(rate_per_s=3.0, seed=3), run=0)
    assert make_load(LoadSettings(rate_per_s=3.0, seed=3), run=0) != make_load(LoadSettings(rate_per_s=3.0, seed=4), run=0)


def test_a_load_has_its_rate_and_stays_within_the_model() -> None:
    settings = LoadSettings(rate_per_s=3.0, duration_s=1_500)
    load = make_load(settings, run=0)
    busy_s = settings.duration_s * settings.burst_s / (settings.burst_s + settings.pause_s)
    assert len(load) / busy_s == pytest.approx(settings.rate_per_s, rel=0.1)
    assert all(settings.min_prompt_tokens <= len(each.prompt) <= settings.max_prompt_tokens for each in load)
    assert all(2 <= each.output_tokens <= settings.max_output_tokens for each in load)
    assert sorted(each.at_s for each in load) == [each.at_s for each in load]


def test_nothing_arrives_in_a_pause() -> None:
    settings = LoadSettings(rate_per_s=3.0, duration_s=500, burst_s=10, pause_s=5)
    assert max(each.at_s % 15 for each in make_load(settings, run=0)) < 10


def test_the_mean_prompt_time_follows_the_model() -> None:
    settings = LoadSettings(rate_per_s=1.0)
    long = LoadSettings(rate_per_s=1.0, prompt_scale=0.7)

    class PerToken:
        def step_s(self, batch: BatchShape) -> float:
            return batch.prefill_tokens / 1_000

    assert 0.1 < mean_prompt_s(settings, PerToken()) < mean_prompt_s(long, PerToken()) < 2.0


def test_the_unloaded_sample_spans_the_prompt_lengths() -> None:
    load = make_load(LoadSettings(rate_per_s=3.0), run=0)
    lengths = [len(request.prompt) for request in one_by_one(load, 12)]
    every = sorted(len(request.prompt) for request in load)
    assert len(lengths) == 12
    assert lengths == sorted(lengths)
    assert lengths[0] <= every[len(every) // 8]
    assert lengths[-1] >= every[-len(every) // 8]


@pytest.mark.parametrize("name", ["rate_per_s", "duration_s", "burst_s", "pause_s", "prompt_scale", "output_scale"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_load_names_what_is_wrong(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be a finite number > 0"):
        LoadSettings(**{"rate_per_s": 1.0, name: value})
