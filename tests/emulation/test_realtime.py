"""Going before others is done where it is allowed, and is no error where it is not."""

import os
import threading

import pytest

from vllm_kairos.emulation.realtime import go_before_others


def test_only_the_thread_that_asks_is_moved() -> None:
    before = os.sched_getscheduler(0)
    policies: list[int] = []

    def ask() -> None:
        if go_before_others():
            policies.append(os.sched_getscheduler(0))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert policies in ([], [os.SCHED_RR])
    assert os.sched_getscheduler(0) == before


def test_it_goes_before_what_was_started_under_a_real_time_policy_too() -> None:
    priorities: list[int] = []

    def ask() -> None:
        try:
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(7))
        except OSError:
            return
        if go_before_others():
            priorities.append(os.sched_getparam(0).sched_priority)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert priorities in ([], [8])


def test_without_the_right_to_it_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, policy: int, parameter: os.sched_param) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    assert not go_before_others()
