"""What the governor has done reaches /metrics."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tests.engine.builder import make_request
from tests.engine.governed import Governed, options
from tests.engine.test_governor import with_decodes
from vllm_kairos.core.governor import GovernorCounts
from vllm_kairos.engine.counts_writer import CountsWriter
from vllm_kairos.engine.governor_metrics import GovernorCollector, governor_collector_for, read_governor_counts

PATIENCE_S = 20.0


def written(path: Path, least_steps: int = 0) -> GovernorCounts:
    end_s = time.monotonic() + PATIENCE_S
    while (counts := read_governor_counts(path)) is None or counts.bounded_steps < least_steps:
        assert time.monotonic() < end_s
        time.sleep(0.01)
    return counts


def test_an_engine_writes_what_its_governor_counts(build: Any, tmp_path: Path) -> None:
    path = tmp_path / "counts"
    settings = options(tbt_slo_s=0.03, correct=True, totals_file=str(path))
    node = with_decodes(Governed(build(kairos=settings)))
    node.slowness = lambda: 1.5
    node.scheduler.add_request(make_request("P", 3000, max_tokens=1))
    steps = len(node.chunks("P"))
    node.step()
    counts = written(path, steps)
    assert counts.bounded_steps == steps
    assert 0 < counts.late_steps < steps
    assert (counts.lost_steps, counts.starved_steps, counts.share) == (0, 0, 1.0)
    assert counts.correction["mixed"] == pytest.approx(1.5)
    node.scheduler.shutdown()
    assert read_governor_counts(path) is None


def test_lost_and_starved_steps_are_told_apart(build: Any) -> None:
    node = with_decodes(Governed(build(kairos=options(tbt_slo_s=0.005, starvation_s=0.03))))
    node.scheduler.add_request(make_request("P", 64, max_tokens=1))
    node.chunks("P")
    counts = node.governor._governor.counts
    assert (counts.bounded_steps, counts.lost_steps, counts.starved_steps) == (4, 4, 0)
    assert counts.late_steps >= 3


def test_metrics_are_by_rank_and_regime(tmp_path: Path) -> None:
    counts = GovernorCounts(bounded_steps=70, late_steps=3, lost_steps=2, starved_steps=1, share=0.9)
    writer = CountsWriter(counts, tmp_path / "t.1", period_s=0.01)
    written(tmp_path / "t.1")
    config = SimpleNamespace(instance_id="i", parallel_config=SimpleNamespace(data_parallel_size=2))
    collector = governor_collector_for(config, SimpleNamespace(totals_file=str(tmp_path / "t")))  # type: ignore[arg-type]
    registry = CollectorRegistry()
    registry.register(collector)
    text = generate_latest(registry).decode()
    writer.close()
    for expected in (
        'kairos_governor_bounded_steps_total{engine="1"} 70.0',
        'kairos_governor_late_steps_total{engine="1"} 3.0',
        'kairos_governor_lost_steps_total{engine="1"} 2.0',
        'kairos_governor_starved_total{engine="1"} 1.0',
        'kairos_governor_share{engine="1"} 0.9',
        'kairos_governor_correction{engine="1",regime="decode"} 1.0',
    ):
        assert expected in text
    assert 'engine="0"' not in text


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b'{"bounded_steps": "x"}'])
def test_a_file_that_is_not_ours_counts_nothing(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "t").write_bytes(data)
    assert read_governor_counts(tmp_path / "t") is None
    assert not list(GovernorCollector([tmp_path / "t"]).collect())
