"""The pool against a model that knows each prefix block by name."""

from hypothesis import given
from hypothesis import strategies as st

from vllm_kairos.sim.job import Job
from vllm_kairos.sim.kv_pool import KvPool
from vllm_kairos.workload.request import TraceRequest

BLOCK, GROUP = 4, 8  # a prefix block is two of the engine's

prompts = st.builds(
    lambda prompt, family, blocks: (prompt, tuple(10 * family + at for at in range(min(blocks, prompt // GROUP)))),
    st.integers(1, 60),
    st.integers(0, 2),
    st.integers(0, 6),
)


def job_of(prompt: int, hashes: tuple[int, ...]) -> Job:
    request = TraceRequest(
        request_id="r",
        arrival_s=0.0,
        prompt_tokens=prompt,
        output_tokens=1,
        block_hashes=hashes,
        block_tokens=GROUP if hashes else 0,
    )
    return Job(request=request)


class Reference:
    """Which prefix blocks are cached, least recently used first."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.jobs: dict[Job, tuple[set[int], int]] = {}  # shared hashes, own blocks
        self.idle: list[int] = []

    @property
    def held(self) -> set[int]:
        return set().union(*(shared for shared, _ in self.jobs.values()))

    @property
    def in_use(self) -> int:
        return 2 * len(self.held) + sum(own for _, own in self.jobs.values())

    def hits(self, prompt: int, hashes: tuple[int, ...]) -> int:
        known = self.held | set(self.idle)
        count = 0
        while count < min(len(hashes), (prompt - 1) // GROUP) and hashes[count] in known:
            count += 1
        return count

    def admit(self, job: Job, blocks: int) -> bool:
        request = job.request
        hits = self.hits(request.prompt_tokens, request.block_hashes)
        shared, own = set(request.block_hashes[:hits]), blocks - 2 * hits
        if self.in_use + 2 * len(shared - self.held) + own > self.total:
            return False
        self.idle = [name for name in self.idle if name not in shared]
        known = self.held | shared | set(self._evicted(own + 2 * len(shared - self.held)))
        fresh = [name for name in request.block_hashes[hits : request.prompt_tokens // GROUP] if name not in known]
        self.jobs[job] = shared | set(fresh), own - 2 * len(fresh)
        return True

    def _evicted(self, more: int) -> list[int]:
        """Drop idle blocks until what remains fits beside `more` new ones."""
        while 2 * len(self.idle) > self.total - self.in_use - more:
            self.idle.pop(0)
        return self.idle

    def release(self, job: Job) -> None:
        shared, _ = self.jobs.pop(job)
        order = [name for name in reversed(job.request.block_hashes) if name in shared - self.held]
        self.idle += order


@given(total=st.integers(15, 40), script=st.lists(st.one_of(prompts, st.integers(0, 3)), max_size=30))
def test_the_pool_agrees_with_the_reference(total: int, script: list[tuple[int, tuple[int, ...]] | int]) -> None:
    """Prompts come when they fit and are computed whole; a number ends one of those that run."""
    pool, reference, running = KvPool(total, BLOCK), Reference(total), []
    for item in script:
        if isinstance(item, int):
            if item < len(running):
                job = running.pop(item)
                reference.release(job)
                pool.release(job)
        else:
            job = job_of(*item)
            assert pool.cached_tokens(job) == GROUP * reference.hits(*item)
            pool.attach(job)
            fits = pool.hold(job, job.request.prompt_tokens)
            if fits:
                job.computed_tokens = job.request.prompt_tokens
                pool.publish(job)
                running.append(job)
                assert reference.admit(job, pool.blocks_for(job.request.prompt_tokens))
            else:
                pool.release(job)
                # What was looked at counts as used a moment ago.
                looked_at = [n for n in reversed(item[1][: reference.hits(*item)]) if n in reference.idle]
                reference.idle = [n for n in reference.idle if n not in looked_at] + looked_at
                assert not reference.admit(job, pool.blocks_for(job.request.prompt_tokens))
        assert pool.in_use_blocks == reference.in_use
        assert list(pool._idle) == reference.idle
    for job in running:
        pool.release(job)
    assert pool.in_use_blocks == 0


def test_the_last_prompt_token_is_always_left_to_compute() -> None:
    pool = KvPool(10, BLOCK)
    for cached in (0, GROUP):
        job = job_of(2 * GROUP, (1, 2))
        pool.attach(job)
        assert job.computed_tokens == cached
        assert pool.hold(job, 2 * GROUP)
        job.computed_tokens = 2 * GROUP
        pool.publish(job)
        pool.release(job)


def test_without_prefix_caching_nothing_is_shared() -> None:
    pool = KvPool(10, BLOCK, prefix_caching=False)
    job = job_of(2 * GROUP, (1, 2))
    job.computed_tokens = 2 * GROUP
    pool.publish(job)
    assert (job.shared_hashes, pool.cached_tokens(job_of(2 * GROUP, (1, 2)))) == ([], 0)
