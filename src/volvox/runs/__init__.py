"""Runs: training, run directories, loading, profiling, tuning, sweeps, the zoo, loggers, and export."""

import lazy_loader

# Training does not need safetensors, which the zoo reads.
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submodules=["zoo"], submod_attrs={"train": ["log_arrays"]})
