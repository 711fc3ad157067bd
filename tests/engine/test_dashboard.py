"""The dashboard's row about engines asks for what they count, and shows all of it."""

import pytest

from tests.dashboard import asked_by, dashboard_panels
from vllm_kairos.core.governor import GovernorCounts
from vllm_kairos.engine.governor_metrics import GovernorCollector
from vllm_kairos.engine.lease_counts import LeaseCounts
from vllm_kairos.engine.lease_metrics import LeaseCollector

PANELS = dashboard_panels()
FAMILIES = {
    "kairos_governor_": GovernorCollector([]).metrics([("0", GovernorCounts())]),
    "kairos_lease": LeaseCollector([]).metrics([("0", LeaseCounts())]),
}
COUNTED = {prefix: {sample.name for one in families for sample in one.samples} for prefix, families in FAMILIES.items()}


@pytest.mark.parametrize("prefix", COUNTED)
def test_it_asks_for_all_that_exist_and_no_others(prefix: str) -> None:
    assert COUNTED[prefix]
    assert asked_by(PANELS, prefix) == COUNTED[prefix]


def test_it_asks_for_nothing_that_neither_engines_nor_routers_count() -> None:
    assert asked_by(PANELS, "kairos", "vllm") == asked_by(PANELS, "kairos_router_", *COUNTED)
