"""Data that learners store and compute: segments, replay, returns, normalisation, metrics.

The modules `segments`, `replay`, `normalization` and `metrics` are used by their names, e.g. `replay.add`.
"""

from volvox.data import metrics, normalization, replay, segments
from volvox.data.segments import lambda_returns

__all__ = ["lambda_returns", "metrics", "normalization", "replay", "segments"]
