"""One reader per trace format; `registry` finds the right one."""
