"""What decode nodes grant by, and how many routers spend it, are settings of a simulation."""

from tests.simulate.runs import cell, config_of, outcome_of
from vllm_kairos.core.lease import LeaseSettings
from vllm_kairos.sim.fleet import Fleet
from vllm_kairos.simulate.build import build_cluster
from vllm_kairos.simulate.experiment_run import configs_of
from vllm_kairos.simulate.experiments.registry import find_experiment
from vllm_kairos.simulate.sweep import cell_workload, make_simulation

MANY = ("--cluster", "1P2D", "--routers", "3")


def granted_by(*flags):
    return build_cluster(config_of(*flags)).leases


def simulation_of(*flags, policy):
    one = cell(*flags, policy=policy)
    return make_simulation(one, cell_workload(one))


def test_unset_they_are_those_of_the_engine_plugin():
    assert granted_by() == LeaseSettings()


def test_each_can_be_set():
    given = "--leases-ttl-s 1 --leases-horizon-s 2 --leases-tbt-slo-ms 50 --leases-beta 0.8"
    assert granted_by(*given.split()) == LeaseSettings(ttl_s=1.0, horizon_s=2.0, tbt_slo_s=0.05, beta=0.8)


def test_beta_is_that_of_decisions_unless_given():
    assert granted_by("--deflect-beta", "0.7").beta == 0.7
    assert granted_by("--deflect-beta", "0.7", "--leases-beta", "0.8").beta == 0.8


def test_a_decode_waits_for_the_leases_own_objective_or_the_governors_or_the_loads():
    flags = ["--tbt-slo-ms", "60"]
    assert granted_by(*flags).tbt_slo_s == 0.06
    flags += ["--governor-mode", "guarded", "--governor-tpot-slo-ms", "25"]
    assert granted_by(*flags).tbt_slo_s == 0.025
    flags += ["--governor-tbt-slo-ms", "50"]
    assert granted_by(*flags).tbt_slo_s == 0.05
    flags += ["--leases-tbt-slo-ms", "40"]
    assert granted_by(*flags).tbt_slo_s == 0.04


def test_nodes_grant_only_where_the_policy_spends_and_to_every_router():
    assert simulation_of(*MANY, policy="kairos").leases is None
    simulation = simulation_of(*MANY, policy="crossflow")
    assert isinstance(simulation.router, Fleet)
    assert simulation.leases is not None
    assert simulation.leases._routers == ("r0", "r1", "r2")


def test_a_short_horizon_deflects_less():
    def deflected(*flags):
        outcome = outcome_of(cell("--cluster", "1P1D", *flags, policy="crossflow", rate_rps=8.0))
        return sum(record.deflected for record in outcome.requests)

    assert deflected("--leases-horizon-s", "0.2") < deflected()


def test_all_requests_end_behind_several_routers():
    for policy in ("never", "kairos", "crossflow"):
        assert all(record.ok for record in outcome_of(cell(*MANY, policy=policy)).requests)


def test_an_experiment_takes_them_too():
    configs = configs_of(find_experiment("crossflow"), {"leases": {"horizon_s": 2.0}, "cluster": {"routers": 2}})
    assert {(config.leases.horizon_s, config.cluster.routers) for config in configs.values()} == {(2.0, 2)}
