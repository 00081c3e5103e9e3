"""Runs: training, run directories, loading, profiling, tuning, loggers, and export."""

from volvox.runs.train import log_arrays

__all__ = ["log_arrays"]
