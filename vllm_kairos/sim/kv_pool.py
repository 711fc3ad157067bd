"""An engine's KV blocks: held ones, free ones, and free ones that still hold a reusable prefix."""

from collections import OrderedDict

from vllm_kairos.errors import SimulationError
from vllm_kairos.sim.job import Job


class KvPool:
    """Counts blocks and keeps prefix blocks until their space is needed, least recently used first.

    A prefix block is what one hash of the trace covers: several blocks of the engine. Without hashes
    the pool is a counter. Blocks of prefixes that no job holds count as free.
    """

    def __init__(self, total_blocks: int, block_size_tokens: int, *, prefix_caching: bool = True) -> None:
        self.total_blocks, self._block_size_tokens = total_blocks, block_size_tokens
        self._prefix_caching = prefix_caching
        self.in_use_blocks = 0
        self._holders: dict[int, int] = {}  # hash -> jobs that hold it
        self._idle: OrderedDict[int, int] = OrderedDict()  # hash -> blocks, nobody holds it
        self._idle_blocks = 0

    @property
    def free_blocks(self) -> int:
        return self.total_blocks - self.in_use_blocks

    def blocks_for(self, tokens: int) -> int:
        """Blocks that `tokens` tokens occupy."""
        return -(-tokens // self._block_size_tokens)

    def cached_tokens(self, job: Job) -> int:
        """Leading prompt tokens of `job` that are cached; at least one token is left to compute."""
        return self._hits(job) * job.request.block_tokens

    def attach(self, job: Job) -> None:
        """Let `job` hold whatever of its prefix is cached, which counts as computed."""
        hits = self._hits(job)
        size = self._group_blocks(job)
        for block_hash in job.request.block_hashes[:hits]:
            self._hold_shared(block_hash, size)
        job.shared_hashes = list(job.request.block_hashes[:hits])
        job.published_hashes = hits
        job.held_blocks = hits * size
        job.computed_tokens = hits * job.request.block_tokens

    def hold(self, job: Job, tokens: int) -> bool:
        """Make `job` hold blocks for its first `tokens` tokens; False, and nothing changes, when too few are free."""
        more = self.blocks_for(tokens) - job.held_blocks
        if more <= 0:
            return True
        if more > self.free_blocks:
            return False
        self.take(more)
        job.held_blocks += more
        return True

    def trim(self, job: Job) -> None:
        """Take back the blocks that `job` holds beyond its computed tokens."""
        more = job.held_blocks - self.blocks_for(job.computed_tokens)
        if more > 0:
            self.give_back(more)
            job.held_blocks -= more

    def take(self, blocks: int) -> None:
        """Put `blocks` free blocks to use. Raises SimulationError when there are fewer."""
        if blocks > self.free_blocks:
            raise SimulationError(f"blocks must be <= {self.free_blocks}, those free, got {blocks}")
        self.in_use_blocks += blocks
        while self._idle_blocks > self.free_blocks:
            self._idle_blocks -= self._idle.popitem(last=False)[1]

    def give_back(self, blocks: int) -> None:
        """Undo `take`, as far as no job holds the blocks."""
        self.in_use_blocks -= blocks

    def publish(self, job: Job) -> None:
        """Make what `job` has computed of its hashed prefix reusable."""
        size = self._group_blocks(job)
        if not size:
            return
        hashes = job.request.block_hashes
        whole = min(job.computed_tokens // job.request.block_tokens, len(hashes))
        for block_hash in hashes[job.published_hashes : whole]:
            if block_hash in self._holders or block_hash in self._idle:
                continue  # somebody computed the same meanwhile: this job keeps a copy of its own
            self._holders[block_hash] = 1
            job.shared_hashes.append(block_hash)
        job.published_hashes = max(job.published_hashes, whole)

    def release(self, job: Job) -> None:
        """Take back all that `job` holds; its prefix stays cached until the space is needed."""
        size = self._group_blocks(job)
        self.in_use_blocks -= job.held_blocks - len(job.shared_hashes) * size
        for block_hash in reversed(job.shared_hashes):
            self._holders[block_hash] -= 1
            if not self._holders[block_hash]:
                del self._holders[block_hash]
                self._idle[block_hash] = size
                self._idle_blocks += size
                self.in_use_blocks -= size
        job.held_blocks, job.shared_hashes, job.published_hashes = 0, [], 0

    def _hits(self, job: Job) -> int:
        if not self._group_blocks(job):
            return 0
        request = job.request
        most = (request.prompt_tokens + job.produced_tokens - 1) // request.block_tokens
        hits = 0
        for block_hash in request.block_hashes[:most]:
            if block_hash not in self._holders and block_hash not in self._idle:
                break
            hits += 1
        return hits

    def _hold_shared(self, block_hash: int, size: int) -> None:
        if block_hash in self._idle:
            self._idle_blocks -= self._idle.pop(block_hash)
            self.in_use_blocks += size
            self._holders[block_hash] = 0
        self._holders[block_hash] += 1

    def _group_blocks(self, job: Job) -> int:
        """Engine blocks per prefix block of `job`'s trace; 0 where the trace has none or they do not align."""
        tokens = job.request.block_tokens
        aligned = self._prefix_caching and tokens and tokens % self._block_size_tokens == 0
        return tokens // self._block_size_tokens if aligned and job.request.block_hashes else 0
