"""What engine steps took against what was predicted, and what each gap between tokens is put down to."""
