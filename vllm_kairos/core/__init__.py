"""Pure decisions: no clock, no randomness, no I/O; the router and the simulator call the same objects."""
