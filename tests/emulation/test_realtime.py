"""Going before others is done where it is allowed, and is no error where it is not."""

import os
import threading

import pytest

from vllm_kairos.emulation.realtime import go_before_others


def test_only_the_thread_that_asks_is_moved() -> None:
    policies: list[int] = []

    def ask() -> None:
        if go_before_others():
            policies.append(os.sched_getscheduler(0))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert policies in ([], [os.SCHED_RR])
    assert os.sched_getscheduler(0) != os.SCHED_RR


def test_without_the_right_to_it_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, policy: int, parameter: os.sched_param) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    assert not go_before_others()
