"""The settings of `kairos plan`: those of a simulation, and a section `plan`."""

import argparse

from vllm_kairos.simulate.config import OPTIONS, SimulateConfig, make_config
from vllm_kairos.simulate.options import merged, options_of, read_flags, read_yaml
from vllm_kairos.simulate.plan_search import PlanConfig

PLAN_OPTIONS = (*options_of({"plan": PlanConfig}), *OPTIONS)
PLAN_FLAGS = tuple(one for one in PLAN_OPTIONS if one.key != "nodes")


def load_plan(arguments: argparse.Namespace) -> tuple[SimulateConfig, PlanConfig]:
    """Read the file, if any, and let flags override it. Raises ConfigError naming section, field, rule and value.

    The file's `cluster.nodes` is left unused, so that one file serves a simulation and a plan.
    """
    values = read_flags(arguments, PLAN_FLAGS)
    if arguments.config is not None:
        values = merged(read_yaml(arguments.config, PLAN_OPTIONS), values)
    chosen = values.pop("plan", {})
    return make_config(values), PlanConfig(**chosen)
