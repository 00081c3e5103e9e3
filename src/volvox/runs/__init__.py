"""Runs: training, run directories, loading, profiling, tuning, sweeps, the zoo, loggers, and export."""

import lazy_loader

from volvox.runs.train import log_arrays

__all__ = ["log_arrays"]
__getattr__, *_ = lazy_loader.attach(__name__, submodules=["zoo"])  # training does not need its safetensors
