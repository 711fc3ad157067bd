"""What a process must let go of when it was forked from one that serves: Linux hands it everything that was open."""

import os
import signal
import socket
import stat
from contextlib import suppress
from pathlib import Path

_OPEN_FILES = Path("/proc/self/fd")


def let_go_of_parent() -> None:
    """Close inherited network sockets and stop passing signals' wake-ups to the parent's event loop.

    A port would otherwise stay taken when only the parent dies, and the parent's loop would take a
    signal to this process for one to itself.
    """
    signal.set_wakeup_fd(-1)
    for name in os.listdir(_OPEN_FILES):
        with suppress(OSError):  # the listing's own descriptor is closed by now
            _close_if_network(int(name))


def _close_if_network(descriptor: int) -> None:
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        return
    with socket.socket(fileno=os.dup(descriptor)) as probe:
        family = probe.family
    if family in (socket.AF_INET, socket.AF_INET6):
        os.close(descriptor)
