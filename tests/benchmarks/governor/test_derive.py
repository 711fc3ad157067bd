"""What cells say of the governor."""

from benchmarks.governor.cell import row_of
from benchmarks.governor.derive import derived
from tests.benchmarks.governor.records import case, record

CASE = case()


def _derived(*records, of=CASE):
    return derived([row_of(each, of) for each in records], records)


def test_where_stock_is_late_the_governor_is_held_against_the_best_safe_chunk():
    records = [
        *(record("stock", 1.0, at, late=50, ttft_s=0.5) for at in range(2)),
        *(record("stock", 2.0, at, late=200, ttft_s=0.5) for at in range(2)),
        *(record("fixed-512", rate, late=30, ttft_s=0.6) for rate in (1.0, 2.0)),
        *(record("fixed-256", 2.0, at, late=5, ttft_s=1.0 + at) for at in range(2)),
        record("fixed-128", 2.0, ttft_s=3.0),
        *(record("governor", 2.0, at, late=9, ttft_s=1.1 + at) for at in range(2)),
    ]
    found = _derived(*records)["where_stock_is_late"]
    assert (found["rate_rps"], found["stock_late_share"], found["governor_late_share"]) == (2.0, 0.2, 0.009)
    assert found["best_fixed_by_ttft"] == "fixed-256"
    assert 1.05 < found["p95_ttft_over_best_fixed"] < 1.10  # the median of 1.1 and 1.05
    assert found["late_holds"] is found["ttft_holds"] is True


def test_a_slower_or_later_governor_does_not_hold():
    found = _derived(record("stock", 1.0, late=200), record("fixed-64", 1.0), record("governor", 1.0, late=10, ttft_s=1.2))
    (one,) = found["by_rate"]
    assert (one["late_holds"], one["ttft_holds"]) == (False, False)


def test_goodput_is_held_against_the_best_of_all_fixed_chunks():
    good = [
        record("governor", 1.0),
        record("governor", 2.0, ttft_s=5.0),
        record("fixed-64", 1.0),
        record("stock", 2.0, ttft_s=5.0),
    ]
    found = _derived(*good)
    assert found["goodput"]["governor"] == {"contender": "governor", "rate_rps": 1.0, "good_rps": 1.0}
    assert found["goodput"]["gain"] == 0.0
    assert found["largest_goodput_loss"] == 0.0
    assert found["loss_holds"] is True
    worse = _derived(record("governor", 1.0, ttft_s=5.0), record("fixed-64", 1.0))
    assert (worse["largest_goodput_loss"], worse["loss_holds"]) == (1.0, False)


def test_scaled_profiles_tell_of_their_recovery_alone():
    found = _derived(
        record("governor-x0.7", 1.0, late=90), record("governor-x1.4", 1.0, 0), record("governor-x1.4", 1.0, 1, late=99)
    )
    assert found["goodput"] == {"governor": None, "best_fixed": None, "gain": None}
    recovery = found["recovery"]
    assert [run["recovery_s"] for run in recovery["governor-x1.4"]["runs"]] == [0.0, 10.0]
    assert (recovery["governor-x0.7"]["slowest_s"], recovery["governor-x0.7"]["holds"]) == (10.0, True)
    assert len(recovery["governor-x0.7"]["runs"][0]["windows"]) == 3


def test_of_a_tpot_objective_requests_are_late():
    row = row_of(record("governor", 1.0, late=500), case(objective="tpot"))
    assert (row["late_share"], row["engine_violation_share"]) == (0.25, 0.5)
    unknown = record("governor", 1.0)
    unknown["engine"]["tpot_attainment"] = None
    assert row_of(unknown, case(objective="tpot"))["late_share"] == 0.0


def test_the_clients_gaps_do_not_count_where_tokens_come_together():
    together = record("governor", 1.0)
    together["figures"]["tokens_per_arrival"] = 8.0
    assert row_of(together, CASE)["tbt_violation_share"] is None
    assert row_of(record("governor", 1.0), CASE)["tbt_violation_share"] == 0.0


def test_nothing_comes_of_nothing():
    found = _derived()
    assert found["where_stock_is_late"] is None
    assert found["by_rate"] == []
    assert found["loss_holds"] is None
