"""Failures injected during a replay: parts of benchmarks/serving/failures.py."""
