"""A time limit does what asyncio.timeout does."""

import asyncio

import pytest

from kairos_router.time_limit import TimeLimit

NOW_S = 0.0


async def _cancelling() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


async def test_what_ends_in_time_is_left_alone():
    with TimeLimit(1000.0) as limit:
        await asyncio.sleep(0)
    assert not limit.expired
    await asyncio.sleep(0)


async def test_what_lasts_longer_is_ended():
    with pytest.raises(TimeoutError), TimeLimit(NOW_S):
        await asyncio.Event().wait()
    assert await _cancelling() == 0


async def test_without_a_limit_only_expire_ends_it():
    limit = TimeLimit()
    for _ in range(2):
        asyncio.get_running_loop().call_soon(limit.expire)
    with pytest.raises(TimeoutError), limit:
        await asyncio.Event().wait()
    assert await _cancelling() == 0


async def test_other_errors_pass_through():
    with pytest.raises(ValueError, match="x"), TimeLimit(1000.0):
        raise ValueError("x")


@pytest.mark.parametrize(("outer_s", "inner_s", "ended"), [(NOW_S, 1000.0, "outer"), (1000.0, NOW_S, "inner")])
async def test_one_within_another_ends_only_its_own_block(outer_s, inner_s, ended):
    said = []
    try:
        with TimeLimit(outer_s):
            try:
                with TimeLimit(inner_s):
                    await asyncio.Event().wait()
            except TimeoutError:
                said.append("inner")
    except TimeoutError:
        said.append("outer")
    assert said == [ended]
    assert await _cancelling() == 0


async def test_a_cancellation_from_outside_stays_one():
    async def limited() -> None:
        with TimeLimit(1000.0):
            await asyncio.Event().wait()

    task = asyncio.create_task(limited())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancellation_from_outside_wins_over_the_limit():
    async def limited() -> None:
        with TimeLimit() as limit:
            limit.expire()
            task.cancel()
            await asyncio.Event().wait()

    task = asyncio.create_task(limited())
    with pytest.raises(asyncio.CancelledError):
        await task
