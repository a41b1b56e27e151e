"""Comparisons that anyone can run: `python -m benchmarks --help`."""
