"""A device does not wait for a CPU: neither should the process that stands for it."""

import os

_LOWEST_PRIORITY = 1


def go_before_others() -> bool:
    """Have this thread, and those it starts, run as soon as they can, before all ordinary ones; False where not allowed.

    An emulated engine core works for a millisecond or two per step and sleeps in between, so others hardly
    notice. Linux keeps a twentieth of each second for ordinary processes whatever such threads do.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(_LOWEST_PRIORITY))
    except OSError:
        return False
    return True
