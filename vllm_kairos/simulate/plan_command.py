"""`kairos plan`: the fewest (or cheapest) nodes, and the policy, that serve a load within its objectives."""

import argparse
from pathlib import Path

from vllm_kairos.cli.command import Command
from vllm_kairos.simulate.command import RememberingParser, command_line, print_load, say, worker_count


def make_parser(prog: str) -> argparse.ArgumentParser:
    """Build the parser of `kairos plan`."""
    from vllm_kairos.simulate.options import add_flags
    from vllm_kairos.simulate.plan_settings import PLAN_FLAGS

    parser = RememberingParser(prog=prog, description=__doc__)
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file with the settings below; flags override it")
    parser.add_argument("--out", type=Path, default=Path("kairos-plan"), metavar="DIR", help="where results go (kairos-plan)")
    parser.add_argument("--workers", type=int, metavar="N", help="processes (one per CPU)")
    add_flags(parser, PLAN_FLAGS)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Search and write plan.json and plan.html; status 1 when no size suffices."""
    from vllm_kairos.results.out_dir import make_out_dir, write_all
    from vllm_kairos.simulate.plan import check_plan, make_plan, of_every_role
    from vllm_kairos.simulate.plan_report import HEADINGS, candidate_rows, plan_files, verdict_line
    from vllm_kairos.simulate.plan_settings import load_plan
    from vllm_kairos.simulate.progress import request_bar
    from vllm_kairos.simulate.sweep import check
    from vllm_kairos.simulate.table import as_text
    from vllm_kairos.simulate.workers import worker_pool

    config, plan = load_plan(arguments)
    check_plan(config)
    workers, workload = worker_count(arguments.workers), check(of_every_role(config))
    out = make_out_dir(arguments.out)
    with request_bar("candidates", None) as tell, worker_pool(workers) as run_all:
        outcome = make_plan(config, plan, run_all, tell)
    print_load(workload)
    files = plan_files(command_line(arguments), config, plan, workload, outcome)
    say(as_text(HEADINGS, candidate_rows(outcome)))
    say(verdict_line(outcome, plan))
    write_all(out, files)
    say(f"wrote {', '.join(files)} to {out}")
    return 0 if outcome.answer is not None else 1


COMMAND = Command(summary="find the nodes and the policy that a load needs", make_parser=make_parser, run=run)
