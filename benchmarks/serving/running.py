"""A long benchmark as a person runs it: what it says, how it is stopped, how it ends."""

import asyncio
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop

from vllm_kairos.errors import ConfigError, KairosError


def say(text: str) -> None:
    """Tell a person what happens."""
    sys.stderr.write(f"[{time.strftime('%H:%M:%S')}] {text}\n")
    sys.stderr.flush()


def run_until_stopped(work: Coroutine[Any, Any, None]) -> bool:
    """Say whether all was done: Ctrl-C and SIGTERM end whatever `work` has started and leave the rest."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_until_stopped(work))


async def _until_stopped(work: Coroutine[Any, Any, None]) -> bool:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        await work
    except asyncio.CancelledError:
        say("stopped; --resume goes on from here")
        return False
    return True


def exit_status(name: str, work: Callable[[], int]) -> int:
    """What `work` returns, or 2 for bad input and 1 for servers that fail, with a line that says why."""
    try:
        return work()
    except KairosError as error:
        sys.stderr.write(f"{name}: {error}\n")
        return 2 if isinstance(error, ConfigError) else 1
