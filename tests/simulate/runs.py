"""Small simulations that tests share."""

from vllm_kairos.simulate.command import RememberingParser
from vllm_kairos.simulate.config import OPTIONS, SimulateConfig, make_config
from vllm_kairos.simulate.options import add_flags, read_flags
from vllm_kairos.simulate.sweep import Cell, CellResult, cell_workload, make_simulation, run_cells

SMALL_LOAD = ("--workload", "Bursty", "--requests", "40")


def config_of(*flags: str) -> SimulateConfig:
    """The configuration that these flags make."""
    parser = RememberingParser(prog="kairos simulate")
    add_flags(parser, OPTIONS)
    return make_config(read_flags(parser.parse_args(list(flags)), OPTIONS))


def cell(*flags: str, policy: str = "kairos", rate_rps: float | None = 4.0, seed: int = 0) -> Cell:
    """One cell of a small load."""
    return Cell(config=config_of(*SMALL_LOAD, *flags), policy=policy, rate_rps=rate_rps, seed=seed)


def outcome_of(one: Cell):
    """Run it without figures."""
    return make_simulation(one, cell_workload(one)).run()


def result_of(one: Cell) -> CellResult:
    """Run it here."""
    return run_cells([one], workers=1)[0]
