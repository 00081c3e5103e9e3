"""Runs: training, run directories, loading, profiling, tuning, loggers, and export."""

from volvox.runs.checkpoint import DamagedCheckpointError
from volvox.runs.profile import profile, tune
from volvox.runs.run import Run, load
from volvox.runs.train import log_arrays, train

__all__ = ["DamagedCheckpointError", "Run", "load", "log_arrays", "profile", "train", "tune"]
