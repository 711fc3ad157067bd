"""The simulator takes for its governor and leases what the engine plugin takes, and refuses what that refuses."""

from math import inf

import pytest

from tests.simulate.runs import config_of
from vllm_kairos.engine.governor_settings import parse_governor
from vllm_kairos.engine.lease_settings import parse_leases
from vllm_kairos.errors import ConfigError
from vllm_kairos.simulate.build import build_cluster
from vllm_kairos.simulate.sections import GovernorConfig, LeasesConfig

TIMES_S = (-1.0, 0.0, 1e-9, 0.00009, 0.0001, 0.01, 1.0, 3600.0, 3600.1, 1e6, inf)


def taken(make, *arguments, **named):
    try:
        make(*arguments, **named)
    except ConfigError:
        return False
    return True


@pytest.mark.parametrize("time_s", TIMES_S)
@pytest.mark.parametrize("name", ["tbt_slo", "tpot_slo", "ttft_slo"])
def test_a_governor_has_the_same_objectives(name, time_s):
    in_engine = taken(parse_governor, {f"{name}_s": time_s}, default_profile="x", floor_tokens=16)
    assert taken(GovernorConfig, **{f"{name}_ms": time_s * 1e3}) == in_engine


@pytest.mark.parametrize("time_s", TIMES_S)
@pytest.mark.parametrize(
    ("name", "given", "unit"), [("tbt_slo_s", "tbt_slo_ms", 1e3), ("ttl_s",) * 2 + (1,), ("horizon_s",) * 2 + (1,)]
)
def test_leases_have_the_same_times(name, given, unit, time_s):
    in_engine = taken(parse_leases, {name: time_s}, default_profile="x", default_tbt_slo_s=None)
    assert taken(LeasesConfig, **{given: time_s * unit}) == in_engine


@pytest.mark.parametrize("flags", ["--tbt-slo-ms 3600000", "--governor-mode guarded --governor-tpot-slo-ms 3600000"])
def test_leases_can_go_by_any_objective_that_is_taken(flags):
    assert build_cluster(config_of(*flags.split())).leases.tbt_slo_s == 3600
