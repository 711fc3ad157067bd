"""Pytest plugin for upstream_tests.py: with KAIROS_UPSTREAM=kairos, vLLM's scheduler classes are ours.

Test modules import the classes by name, so replacing the names before they are collected is enough;
KairosScheduler itself has the real classes as its bases. The tests choose the mode by the class, while
vLLM's CPU platform turns async scheduling off in the configuration, so each name gets a fixed mode.
Diffusion models have scheduler classes of their own, which stay as they are.
"""

import gc
import os
from typing import Any


def pytest_configure() -> None:
    if os.environ.get("KAIROS_UPSTREAM") != "kairos":
        return
    from vllm.v1.core.sched import async_scheduler, diffusion_scheduler, scheduler  # noqa: F401 (before the names change)

    from vllm_kairos import KairosScheduler

    base: Any = KairosScheduler
    plain = scheduler.Scheduler

    class KairosAsync(base):
        def _runs_async(self) -> bool:
            return True

    class KairosPlain(base):
        """Also where a test makes an object without __init__."""

        _update_after_schedule = plain._update_after_schedule
        _update_request_with_output = plain._update_request_with_output

        def _runs_async(self) -> bool:
            return False

    scheduler.Scheduler = KairosPlain
    async_scheduler.AsyncScheduler = KairosAsync


def pytest_collection_finish() -> None:
    """vLLM's tests collect garbage after each one: let them pass over the millions of objects that were imported."""
    gc.collect()
    gc.freeze()
    gc.unfreeze = lambda: None
