"""A forked process holds nothing of its parent's that others could see."""

import os
import signal
import socket

from vllm_kairos.emulation.forked import let_go_of_parent


def _in_a_fork(check: "list[int]") -> int:
    """Exit status of a forked child that lets go and then says which of these descriptors are still open."""
    pid = os.fork()
    if pid == 0:
        let_go_of_parent()
        still_open = 0
        for bit, descriptor in enumerate(check):
            try:
                os.fstat(descriptor)
            except OSError:
                continue
            still_open |= 1 << bit
        os._exit(still_open)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_network_sockets_are_closed_in_the_child_alone() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert _in_a_fork([server.fileno(), bound.fileno(), ours.fileno(), 1]) == 0b1100
        socket.create_connection(server.getsockname()).close()


def test_signals_no_longer_wake_the_parents_loop() -> None:
    reading, writing = socket.socketpair()
    with reading, writing:
        writing.setblocking(False)
        before = signal.set_wakeup_fd(writing.fileno())
        try:
            pid = os.fork()
            if pid == 0:
                let_go_of_parent()
                signal.signal(signal.SIGUSR1, lambda number, frame: None)
                os.kill(os.getpid(), signal.SIGUSR1)
                os._exit(0)
            os.waitpid(pid, 0)
        finally:
            signal.set_wakeup_fd(before)
        reading.setblocking(False)
        try:
            got = reading.recv(1)
        except BlockingIOError:
            got = b""
        assert got == b""
