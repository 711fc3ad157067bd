"""What a tally shows is what prometheus_client's own metric would show."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

from kairos_router.tallies import CounterTally, GaugeTally, HistogramTally

NAMES = ("leg", "worker")
_LABELS = st.tuples(st.sampled_from(["prefill", "de\ncode"]), st.sampled_from(["p0", 'd"0']))


@pytest.fixture(autouse=True, scope="module")
def _no_created_series():
    disable_created_metrics()  # as the router's command does


def shown(registry: CollectorRegistry) -> set[str]:
    return set(generate_latest(registry).decode().splitlines())


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(_LABELS, st.sampled_from([1, 2.5]))))
def test_a_counter_shows_what_was_added(changes):
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    tally = CounterTally("x_total", "text", NAMES, ours)
    counter = Counter("x_total", "text", NAMES, registry=theirs)
    for labels, amount in changes:
        tally.labels(*labels).inc(amount)
        counter.labels(*labels).inc(amount)
    assert shown(ours) == shown(theirs)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(_LABELS, st.booleans())))
def test_a_gauge_shows_what_was_added_and_taken(changes):
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    tally, gauge = GaugeTally("x", "text", NAMES, ours), Gauge("x", "text", NAMES, registry=theirs)
    for labels, up in changes:
        for child in (tally.labels(*labels), gauge.labels(*labels)):
            child.inc() if up else child.dec()
    assert shown(ours) == shown(theirs)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([(0.5, 1, 2), (-1, 0, 1.5)]),
    st.lists(st.tuples(_LABELS, st.one_of(st.sampled_from([-1.0, 0.0, 0.5, 1.0, 1.5, 2.0]), st.floats(-5, 5)))),
)
def test_a_histogram_shows_what_was_observed(buckets, values):
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    tally = HistogramTally("x_seconds", "text", NAMES, ours, buckets)
    histogram = Histogram("x_seconds", "text", NAMES, registry=theirs, buckets=buckets)
    for labels, value in values:
        tally.labels(*labels).observe(value)
        histogram.labels(*labels).observe(value)
    assert shown(ours) == shown(theirs)


def test_a_series_without_labels_is_one_number():
    registry = CollectorRegistry()
    tally = GaugeTally("x", "text", (), registry)
    tally.labels().inc()
    tally.labels().inc()
    assert "x 2.0" in shown(registry)
