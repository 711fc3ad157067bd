"""`kairos simulate` and `kairos plan`: sweeps of the simulator, their figures and their reports."""
