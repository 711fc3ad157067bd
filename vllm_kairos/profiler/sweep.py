"""Plan which batch shapes to measure; pure, so that every promise about a plan is a property test.

A plan is a list of scenes. A scene keeps a set of decodes alive and visits probes: steps that carry
some prompt tokens beside those decodes, or none. The corner scenes come first and alone hold enough
configurations to fit every model, so that a run cut short by its time budget still gives a profile.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from vllm_kairos.core.regime import Regime
from vllm_kairos.engine.compat_inprocess import EngineFacts
from vllm_kairos.errors import ConfigError

_Item = TypeVar("_Item")

# Configurations each model needs: its coefficients, twice, so that a fifth can be held out.
MINIMUM_CONFIGURATIONS = {Regime.PREFILL: 8, Regime.DECODE: 6, Regime.MIXED: 8}

# Steps a decode may live through in one scene: each adds one KV token, for which the plan keeps room.
SCENE_STEPS = 96


@dataclass(frozen=True, slots=True)
class Probe:
    """One measured step: `prefill_tokens` of a prompt with `done_tokens` computed; 0 tokens: decodes alone."""

    prefill_tokens: int = 0
    done_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Scene:
    """Probes to run beside `running_decodes` decodes that start with `context_tokens` KV tokens each."""

    running_decodes: int
    context_tokens: int
    probes: tuple[Probe, ...]

    def regime(self, probe: Probe) -> Regime:
        """Name the model this probe's step is a sample of."""
        if not probe.prefill_tokens:
            return Regime.DECODE
        return Regime.MIXED if self.running_decodes else Regime.PREFILL

    def configuration(self, probe: Probe) -> str:
        """Name the repeated shape: samples of one configuration are held out together."""
        return f"B{self.running_decodes} c{self.context_tokens} n{probe.prefill_tokens} p{probe.done_tokens}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepLimits:
    """What the engine can hold; every planned step stays inside."""

    max_model_len_tokens: int
    max_running_requests: int
    token_budget_tokens: int
    block_size_tokens: int
    kv_blocks: int

    def __post_init__(self) -> None:
        if self.max_model_len_tokens < 2 * SCENE_STEPS:
            raise ConfigError(f"--max-model-len must be >= {2 * SCENE_STEPS} to profile, got {self.max_model_len_tokens}")
        if self.max_running_requests < 2:
            raise ConfigError(f"--max-num-seqs must be >= 2 to profile, got {self.max_running_requests}")
        if self.kv_blocks * self.block_size_tokens < self.max_model_len_tokens:
            held = self.kv_blocks * self.block_size_tokens
            raise ConfigError(f"KV cache must hold one sequence of {self.max_model_len_tokens} tokens to profile, holds {held}")

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size_tokens)

    def largest_context(self, running_decodes: int, reserved_blocks: int = 0) -> int:
        """KV tokens each of `running_decodes` decodes may start with; 0 when not even one block each fits."""
        by_length = self.max_model_len_tokens - SCENE_STEPS - 1
        blocks_each = (self._usable_blocks - reserved_blocks) // running_decodes
        return max(0, min(by_length, blocks_each * self.block_size_tokens - SCENE_STEPS))

    def prompt_room_tokens(self, running_decodes: int, context_tokens: int) -> int:
        """Longest prompt that fits beside those decodes at the end of their scene."""
        taken = running_decodes * self.blocks_for(context_tokens + SCENE_STEPS)
        by_memory = (self._usable_blocks - taken) * self.block_size_tokens
        return max(0, min(self.max_model_len_tokens - 1, by_memory))

    def reserved_prompt_blocks(self) -> int:
        """Blocks that scenes with prompts keep from their decodes: one longest prompt, at most half of all."""
        return min(self.blocks_for(self.max_model_len_tokens), self._usable_blocks // 2)

    @property
    def _usable_blocks(self) -> int:
        return self.kv_blocks - 1  # vLLM keeps block 0 as a placeholder


def limits_of(facts: EngineFacts) -> SweepLimits:
    """Read the limits off a started engine."""
    return SweepLimits(**{name: getattr(facts, name) for name in SweepLimits.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepGrid:
    """How densely a sweep covers each axis."""

    decode_counts: int
    contexts: int
    offsets: int
    mixed_scenes: int
    decode_repeats: int


QUICK = SweepGrid(decode_counts=4, contexts=3, offsets=3, mixed_scenes=6, decode_repeats=3)
FULL = SweepGrid(decode_counts=7, contexts=5, offsets=6, mixed_scenes=24, decode_repeats=5)


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """One pass over `corners` and then passes over `scenes`, as many as the time allows."""

    corners: tuple[Scene, ...]
    scenes: tuple[Scene, ...]


_Shape = tuple[int, int]  # running decodes, context of each


def plan_sweep(limits: SweepLimits, grid: SweepGrid, chunk_candidates: Sequence[int]) -> SweepPlan:
    """Plan the shapes to measure within `limits`; chunk candidates are total batch tokens (chi)."""
    chunks = sorted({chi for chi in chunk_candidates if 2 <= chi <= limits.token_budget_tokens})
    if not chunks:
        raise ConfigError(
            f"--chunk-candidates must have a value in 2..{limits.token_budget_tokens}, got {list(chunk_candidates)}"
        )
    counts = _geometric(1, limits.max_running_requests - 1, grid.decode_counts)
    shared = _shapes(limits, counts, grid.contexts, limits.reserved_prompt_blocks())
    full = _shapes(limits, [limits.max_running_requests], grid.contexts, 0)
    busy = _spread(shared, grid.mixed_scenes)
    alone = Scene(0, 0, _prefill_probes(limits, grid, chunks))
    scenes = [_scene(limits, grid, shape, _mixed_chunks(busy, shape, chunks)) for shape in (*shared, *full)]
    return SweepPlan(corners=_corners(limits, alone, shared, full, chunks), scenes=(alone, *scenes))


def _shapes(limits: SweepLimits, counts: Iterable[int], contexts: int, reserved_blocks: int) -> list[_Shape]:
    """Decode counts with contexts evenly spread up to what fits that many decodes."""
    shapes = []
    for count in counts:
        longest = limits.largest_context(count, reserved_blocks)
        shapes += [(count, context) for context in _even(min(32, longest), longest, contexts) if context >= 2]
    return shapes


def _mixed_chunks(busy: list[_Shape], shape: _Shape, chunks: Sequence[int]) -> Sequence[int]:
    """Chunks to run beside `shape`; the two largest cost more than all others, so few scenes run them."""
    if shape not in busy:
        return ()
    return chunks if busy.index(shape) % 6 == 1 or len(chunks) < 4 else chunks[:-2]


def _prefill_probes(limits: SweepLimits, grid: SweepGrid, chunks: Sequence[int]) -> tuple[Probe, ...]:
    sizes = sorted({*chunks, min(16, limits.token_budget_tokens), limits.token_budget_tokens})
    return _probes(sizes, grid.offsets, limits.prompt_room_tokens(0, 0))


def _scene(limits: SweepLimits, grid: SweepGrid, shape: _Shape, chunks: Sequence[int]) -> Scene:
    decodes, context = shape
    sizes = [chi - decodes for chi in chunks if chi > decodes]
    probes = _probes(sizes, grid.offsets, limits.prompt_room_tokens(decodes, context))
    room = (SCENE_STEPS - grid.decode_repeats - _SETUP_STEPS) // 2  # a probe may need a warm-up step of its own
    return Scene(decodes, context, (*[Probe()] * grid.decode_repeats, *_spread(probes, room)))


_SETUP_STEPS = 4  # steps a scene spends before its first probe


def _probes(sizes: Sequence[int], offsets: int, room_tokens: int) -> tuple[Probe, ...]:
    """Each chunk size at prompt offsets from 0 to the last that still leaves one token of the prompt."""
    return tuple(
        Probe(size, done) for size in sizes if size + 1 <= room_tokens for done in _even(0, room_tokens - size - 1, offsets)
    )


def _corners(
    limits: SweepLimits, alone: Scene, shared: list[_Shape], full: list[_Shape], chunks: Sequence[int]
) -> tuple[Scene, ...]:
    """Fewest scenes whose configurations fit every model: the ends of each axis."""
    sizes = sorted({chunks[0], chunks[len(chunks) // 2]})
    beside = []
    for decodes, context in _spread(shared, 4):
        chosen = [chi - decodes for chi in sizes if chi > decodes]
        probes = _probes(chosen, 2, limits.prompt_room_tokens(decodes, context))
        beside.append(Scene(decodes, context, (Probe(), Probe(), *probes)))
    bare = [Scene(decodes, context, (Probe(), Probe())) for decodes, context in _spread([*shared, *full], 6)]
    return (Scene(0, 0, _ends_of(alone.probes)), *beside, *bare)


def _ends_of(probes: tuple[Probe, ...]) -> tuple[Probe, ...]:
    """First and last offset of every chunk size but the largest, which is the slowest to run."""
    sizes = sorted({probe.prefill_tokens for probe in probes})
    kept = []
    for size in sizes[:-1] if len(sizes) > 4 else sizes:
        of_size = [probe for probe in probes if probe.prefill_tokens == size]
        kept += [of_size[0], of_size[-1]] if len(of_size) > 1 else of_size
    return tuple(kept)


def _even(low: int, high: int, count: int) -> list[int]:
    """Up to `count` distinct integers evenly from low to high, both included; empty when high < low."""
    if high < low:
        return []
    return sorted({low + round((high - low) * step / max(1, count - 1)) for step in range(count)})


def _geometric(low: int, high: int, count: int) -> list[int]:
    """Up to `count` distinct integers from low to high, each about the same factor above the last."""
    return sorted({round(low * (high / low) ** (step / max(1, count - 1))) for step in range(count)})


def _spread(items: Sequence[_Item], count: int) -> list[_Item]:
    """Up to `count` of `items`, evenly spaced, the first and the last among them, order kept."""
    if len(items) <= count:
        return list(items)
    return [items[index] for index in _even(0, len(items) - 1, count)]
