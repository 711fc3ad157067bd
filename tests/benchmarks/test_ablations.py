"""The ablated policies differ from `kairos` in what their names say, on one decision each."""

from dataclasses import replace

import pytest

from benchmarks.sim.ablations import ABLATIONS, ChiServed, DeafView
from vllm_kairos.core.decision import Reason
from vllm_kairos.core.events import Dispatched, NodeAdded, NodeReported
from vllm_kairos.core.node import NodeState, Role
from vllm_kairos.core.policies.locals import SafeLocals
from vllm_kairos.core.settings import DecisionSettings
from vllm_kairos.core.shapes import RequestShape, Route
from vllm_kairos.core.view import ClusterView
from vllm_kairos.sim.cluster_spec import RouterSpec
from vllm_kairos.simulate.build import build_cluster
from vllm_kairos.simulate.config import SimulateConfig

CLUSTER = build_cluster(SimulateConfig())
DECODE = NodeState(
    node_id="d0", role=Role.DECODE, running_decodes=100, kv_tokens=50_000, total_kv_blocks=27_000, free_kv_blocks=20_000
)
PREFILL = NodeState(node_id="p0", role=Role.PREFILL, token_budget_tokens=8192)
PROMPT = RequestShape(request_id="r", prompt_tokens=4096, max_output_tokens=100)


def test_chi_counted_as_served_plans_fewer_steps():
    model, settings = CLUSTER.decode_model, DecisionSettings()
    counted = ChiServed(model, settings).plan(PROMPT, DECODE)
    exact = SafeLocals(model, settings).plan(PROMPT, DECODE)
    assert counted.schedule.steps < exact.schedule.steps
    assert counted.ttft_s < exact.ttft_s


def test_a_margin_of_the_whole_ttft_deflects_past_an_idle_prefill_node():
    literal = ABLATIONS["alpha-of-whole-ttft"].make(replace(CLUSTER, settings=DecisionSettings(alpha=100.0)))
    decision = literal.decide(PROMPT, [PREFILL, DECODE], 0.0)
    assert (decision.route, decision.reason) == (Route.LOCAL, Reason.WITHIN_MARGIN)


@pytest.mark.parametrize(("name", "route"), [("late-if-sooner", Route.LOCAL), ("chi-counted-as-served", Route.REMOTE)])
def test_a_late_deflection_is_taken_only_by_the_variant_for_it(name, route):
    long_queue = replace(PREFILL, queued_prompt_tokens=(400_000,), queued_prefill_tokens=400_000)
    decision = ABLATIONS[name].make(CLUSTER).decide(replace(PROMPT, ttft_slo_s=0.01), [long_queue, DECODE], 0.0)
    assert decision.route is route


def test_a_busy_node_takes_another_deflection_only_under_many_per_node():
    busy = replace(
        DECODE, deflected_prefills=1, deflected_tokens_left=512, queued_prompt_tokens=(512,), queued_prefill_tokens=512
    )
    long_queue = replace(PREFILL, queued_prompt_tokens=(400_000,), queued_prefill_tokens=400_000)
    routes = {
        name: ABLATIONS[name].make(CLUSTER).decide(PROMPT, [long_queue, busy], 0.0).route
        for name in ("late-if-sooner", "many-per-node")
    }
    assert routes == {"late-if-sooner": Route.REMOTE, "many-per-node": Route.LOCAL}


def test_a_view_of_reports_only_forgets_what_was_sent():
    sent = Dispatched("r", Route.REMOTE, "p0", "d0", 900, 1.0)
    queued = {}
    for view in (ClusterView(), DeafView(RouterSpec(), Dispatched)):
        view.apply(NodeAdded("p0", Role.PREFILL))
        view.apply(NodeReported(PREFILL, "boot", 1.0))
        view.apply(sent)
        queued[type(view)] = view.nodes(1.0)[0].queued_prefill_tokens
    assert queued == {ClusterView: 900, DeafView: 0}
