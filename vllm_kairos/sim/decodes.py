"""The decodes that run together on one engine, advanced many steps at once."""

import heapq
from collections.abc import Iterator

from vllm_kairos.sim.job import Job


class DecodeGroup:
    """Every member gets one token a step, so a step changes sums alone and members are touched as they join and leave.

    Who needs a new KV block in a step depends on the context length modulo the block size, which
    moves on by one for all of them: members are counted by it.
    """

    def __init__(self, block_size_tokens: int) -> None:
        self.kv_tokens = 0  # K
        self._step = 0
        self._block_size_tokens = block_size_tokens
        self._phases = [0] * block_size_tokens
        self._members: dict[Job, None] = {}
        self._finishes: list[tuple[int, int, Job]] = []
        self._joined = 0

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, job: Job) -> bool:
        return job in self._members

    def __iter__(self) -> Iterator[Job]:
        return iter(self._members)

    def join(self, job: Job) -> None:
        """Let `job` decode from the next step on."""
        self._joined += 1
        job.finish_step = self._step + job.output_tokens - job.produced_tokens
        job.context_offset = job.computed_tokens - self._step
        self._members[job] = None
        self._phases[job.context_offset % self._block_size_tokens] += 1
        self.kv_tokens += job.computed_tokens
        heapq.heappush(self._finishes, (job.finish_step, self._joined, job))

    def leave(self, job: Job) -> None:
        """Take `job` out, with its own counts brought up to date."""
        del self._members[job]
        self._phases[job.context_offset % self._block_size_tokens] -= 1
        job.computed_tokens = self.context_tokens(job)
        job.produced_tokens = self.produced_tokens(job)
        job.held_blocks = max(job.held_blocks, -(-job.computed_tokens // self._block_size_tokens))
        self.kv_tokens -= job.computed_tokens
        job.finish_step = -1

    def context_tokens(self, job: Job) -> int:
        """KV tokens that the member `job` holds."""
        return job.context_offset + self._step

    def produced_tokens(self, job: Job) -> int:
        """Tokens that the member `job` has had, those on other engines included."""
        return job.output_tokens - (job.finish_step - self._step)

    def advance(self, steps: int) -> list[Job]:
        """Run `steps` steps and take out those that are then finished, in the order they joined."""
        self._step += steps
        self.kv_tokens += steps * len(self._members)
        finished = []
        while self.steps_to_finish() == 0:
            job = heapq.heappop(self._finishes)[2]
            self.leave(job)
            finished.append(job)
        return finished

    def steps_to_finish(self) -> int:
        """Steps until the first member is finished; -1 without members."""
        finishes = self._finishes
        while finishes and (finishes[0][2] not in self._members or finishes[0][2].finish_step != finishes[0][0]):
            heapq.heappop(finishes)
        return finishes[0][0] - self._step if finishes else -1

    def new_blocks(self, steps: int) -> int:
        """KV blocks that the members take over the next `steps` steps."""
        rounds, rest = divmod(steps, self._block_size_tokens)
        return rounds * len(self._members) + sum(self._starting(step) for step in range(rest))

    def steps_within(self, free_blocks: int, most: int) -> int:
        """The most steps, up to `most`, whose new blocks fit into `free_blocks`."""
        if not self._members:
            return most
        rounds = min(free_blocks // len(self._members), most // self._block_size_tokens)
        steps, left = rounds * self._block_size_tokens, free_blocks - rounds * len(self._members)
        while steps < most and self._starting(steps) <= left:
            left -= self._starting(steps)
            steps += 1
        return steps

    def _starting(self, step: int) -> int:
        """Members whose context fills whole blocks `step` steps from now, so that their next token starts one."""
        return self._phases[-(self._step + step) % self._block_size_tokens]
