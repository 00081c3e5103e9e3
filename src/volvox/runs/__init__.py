"""Runs: training, run directories, loading, profiling, tuning, sweeps, the zoo, loggers, and export."""

from volvox.runs import zoo
from volvox.runs.train import log_arrays

__all__ = ["log_arrays", "zoo"]
