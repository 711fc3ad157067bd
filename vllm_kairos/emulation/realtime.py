"""A device does not wait for a CPU: neither should the process that stands for it."""

import os


def go_before_others() -> bool:
    """Have this thread, and those it starts, run as soon as they can, before all ordinary ones; False where not allowed.

    Where the process was started under a real-time policy already (`chrt --rr 1` before a benchmark's command), it goes
    before what else was started so: servers' front ends, routers and clients.

    An emulated engine core works for a millisecond or two per step and sleeps in between, so others hardly
    notice. Linux keeps a twentieth of each second for ordinary processes whatever such threads do.
    """
    try:
        priority = os.sched_getparam(0).sched_priority + 1  # 0 for ordinary processes
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(min(priority, os.sched_get_priority_max(os.SCHED_RR))))
    except OSError:
        return False
    return True
