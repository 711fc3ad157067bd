"""What every command that leaves result files does alike: the directory, and JSON that is the same for the same values."""
