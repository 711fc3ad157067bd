"""Explain one decision offline: what each node would do with a prompt, and where it would go."""

import argparse
import json
import sys
from typing import Any

from vllm_kairos.cli.command import Command, OneLineParser
from vllm_kairos.core.decision import Assign, Decision, Explanation, NodeVerdict
from vllm_kairos.core.lease.terms import Share
from vllm_kairos.core.settings import DecisionSettings, PrefillUnavailable
from vllm_kairos.core.shapes import RequestShape

_EPILOG = """\
exit status: 0 the prompt was assigned, 1 it was refused, 2 an input was not valid

example:
  kairos decide --profile docs/examples/profile.json --cluster docs/examples/cluster.yaml --prompt-tokens 4096
"""


def make_parser(prog: str) -> argparse.ArgumentParser:
    """Build the parser of `kairos decide`."""
    parser = OneLineParser(
        prog=prog,
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    defaults = DecisionSettings()
    add = parser.add_argument
    add("--profile", required=True, metavar="FILE|NAME", help="latency profile: a file of `kairos profile`, or a shipped one")
    add("--prefill-profile", metavar="FILE|NAME", help="profile of the prefill nodes, if their hardware differs")
    add("--cluster", required=True, metavar="FILE", help="node states, YAML or JSON (docs/cluster-file.md)")
    add("--prompt-tokens", required=True, type=int, metavar="N")
    add("--max-output-tokens", type=int, default=256, metavar="N", help="default %(default)s")
    add("--policy", default="kairos", help="default %(default)s")
    add("--ttft-slo-ms", type=float, default=4000.0, metavar="MS", help="default %(default)s")
    add("--tbt-slo-ms", type=float, default=70.0, metavar="MS", help="default %(default)s")
    add("--alpha", type=float, default=defaults.alpha, help="deflection margin, >= 1; default %(default)s")
    add("--beta", type=float, default=defaults.beta, help="share of the TBT objective a step may use; default %(default)s")
    add(
        "--prefill-unavailable",
        default=str(defaults.prefill_unavailable),
        metavar="MODE",
        help=f"{', '.join(PrefillUnavailable)}; default %(default)s",
    )
    add("--json", action="store_true", help="print one JSON document instead of a table")
    return parser


def run(args: argparse.Namespace) -> int:
    """Decide once and print the explanation."""
    explanation = _explain(args)
    if args.json:
        sys.stdout.write(json.dumps(_document(explanation), indent=2) + "\n")
    else:
        _print_table(explanation)
    return 0 if isinstance(explanation.decision, Assign) else 1


COMMAND = Command(summary="explain one decision offline", make_parser=make_parser, run=run)


def _explain(args: argparse.Namespace) -> Explanation:
    from vllm_kairos.cli.cluster_file import load_cluster
    from vllm_kairos.core.policies import make_policy
    from vllm_kairos.fitting.artifact import load_profile
    from vllm_kairos.profiles import resolve_profile

    profile = load_profile(resolve_profile(args.profile))
    prefill = load_profile(resolve_profile(args.prefill_profile), model=profile.model) if args.prefill_profile else profile
    settings = DecisionSettings(
        alpha=args.alpha,
        beta=args.beta,
        chunk_candidates_tokens=profile.chunk_candidates_tokens,
        kv_bytes_per_token=profile.kv_bytes_per_token,
        prefill_unavailable=args.prefill_unavailable,
    )
    models = {"prefill_model": prefill.step_model, "decode_model": profile.step_model}
    policy = make_policy(args.policy, **models, settings=settings)
    request = RequestShape(
        request_id="offline",
        prompt_tokens=args.prompt_tokens,
        max_output_tokens=args.max_output_tokens,
        ttft_slo_s=args.ttft_slo_ms / 1000,
        tbt_slo_s=args.tbt_slo_ms / 1000,
    )
    return policy.explain(request, load_cluster(args.cluster, profile), 0.0)


def _document(explanation: Explanation) -> dict[str, Any]:
    return {"decision": _decision(explanation.decision), "nodes": [_node(node) for node in explanation.nodes]}


def _decision(decision: Decision) -> dict[str, Any]:
    if not isinstance(decision, Assign):
        return {
            "route": None,
            "reason": decision.reason,
            "detail": decision.detail,
            "retry_after_s": decision.retry_after_s,
        }
    return {
        "route": decision.route,
        "reason": decision.reason,
        "prefill_node": decision.prefill_node,
        "decode_node": decision.decode_node,
        "schedule": _runs(decision),
        "claim": None if decision.claim is None else decision.claim.need._asdict(),
        "local_ttft_s": decision.local_ttft_s,
        "remote_ttft_s": decision.remote_ttft_s,
        "state_age_s": decision.state_age_s,
        "in_fitted_range": decision.in_fitted_range,
    }


def _node(node: NodeVerdict) -> dict[str, Any]:
    return {
        "node_id": node.node_id,
        "role": node.role,
        "verdict": node.verdict,
        "ttft_s": node.ttft_s,
        "step_s": node.step_s,
        "worst_step_s": node.worst_step_s,
        "queue_s": node.queue_s,
        "schedule": _runs(node),
        "lease": None if node.lease is None else node.lease._asdict(),
        "state_age_s": node.state_age_s,
    }


def _runs(value: Assign | NodeVerdict) -> list[dict[str, int]] | None:
    if value.schedule is None:
        return None
    return [{"batch_tokens": run.batch_tokens, "steps": run.steps} for run in value.schedule.runs]


def _print_table(explanation: Explanation) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    leases = any(node.lease is not None for node in explanation.nodes)
    for heading in (
        "node",
        "role",
        "verdict",
        "queue ms",
        "step ms",
        "worst ms",
        "TTFT ms",
        "schedule (steps x chi)",
        "age ms",
        *(["lease"] if leases else []),
    ):
        table.add_column(heading, justify="right" if heading.endswith(" ms") else "left", no_wrap=True)
    for node in explanation.nodes:
        times = [_ms(seconds) for seconds in (node.queue_s, node.step_s, node.worst_step_s, node.ttft_s)]
        schedule = "-" if node.schedule is None else str(node.schedule)
        lease = [_lease(node.lease)] if leases else []
        table.add_row(node.node_id, node.role, node.verdict, *times, schedule, _ms(node.state_age_s), *lease)
    # A fixed width where the output is a file: what is cut off there could not be read.
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False, markup=False)
    console.print(table)
    console.print()
    for line in _summary(explanation.decision):
        console.print(line)


def _summary(decision: Decision) -> list[str]:
    if not isinstance(decision, Assign):
        again = "do not retry" if decision.retry_after_s is None else f"retry after {decision.retry_after_s:g} s"
        return [f"refused: {decision.reason} ({decision.detail}); {again}"]
    if decision.prefill_node is None:
        where = f"deflect to {decision.decode_node} as {decision.schedule}"
    else:
        where = f"keep: prefill on {decision.prefill_node}, decode on {decision.decode_node}"
    lines = [
        f"{where}; reason: {decision.reason}",
        f"predicted TTFT: deflected {_ms(decision.local_ttft_s)} ms, kept {_ms(decision.remote_ttft_s)} ms",
    ]
    if not decision.in_fitted_range:
        lines.append("note: a prediction lies outside what the profile was fitted on")
    return lines


def _lease(share: Share | None) -> str:
    return "-" if share is None else f"{share.prefill_tokens} tokens, {share.kv_blocks} blocks, {share.output_tokens} out"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.1f}"
