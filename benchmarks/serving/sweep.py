"""Which cells there are and in which order, and what they will take: pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from zlib import crc32

_WARM_UP_REPEAT = 10_000
_EXTRA_S = 14.0  # front's start, warm-up, drain and end, as measured on two cores


@dataclass(frozen=True, slots=True, kw_only=True)
class CellKey:
    """One cell: a contender at a rate, in a repeat."""

    repeat: int
    rate_rps: float
    contender: str

    @property
    def file_name(self) -> str:
        """Where its result goes."""
        name = "".join(letter if letter.isalnum() or letter in "-." else "-" for letter in self.contender)
        return f"r{self.repeat}-{self.rate_rps:g}-{name}.json"

    @property
    def prompt_seed(self) -> int:
        """Differs between cells, so that no cell finds its prompts in a prefix cache that another filled."""
        return crc32(f"{self.repeat}/{self.rate_rps:g}/{self.contender}".encode())

    @property
    def warm_up_seed(self) -> int:
        """For prompts of the cell's warm-up."""
        return self.prompt_seed + _WARM_UP_REPEAT


def cells(contenders: Sequence[str], rates_rps: Sequence[float], repeats: int) -> Iterator[CellKey]:
    """Repeat by repeat and rate by rate all contenders in turn, beginning with another one each time.

    A sweep that is cut short so leaves whole repeats.
    """
    for repeat in range(repeats):
        for at, rate_rps in enumerate(rates_rps):
            yield from (CellKey(repeat=repeat, rate_rps=rate_rps, contender=name) for name in rotated(contenders, repeat + at))


def rotated(names: Sequence[str], by: int) -> list[str]:
    """The same names in the same cyclic order, from the `by`-th on."""
    start = by % len(names)
    return [*names[start:], *names[:start]]


def expected_s(loads_s: Sequence[float], *, done_loads_s: Sequence[float] = (), took_s: Sequence[float] = ()) -> float:
    """How long cells that send for so long will take, given how long those took that are done."""
    extra_s = (sum(took_s) - sum(done_loads_s)) / len(took_s) if took_s else _EXTRA_S
    return sum(loads_s) + extra_s * len(loads_s)
