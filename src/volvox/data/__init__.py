"""What learners store and compute: segments, replay, returns, metrics and scores, moments of observations.

The modules `segments`, `replay`, `metrics` and `normalization` are used by their names: `replay.init`, `replay.add`,
`replay.sample`.
"""

from volvox.data import metrics, normalization, replay, segments
from volvox.data.returns import VTrace, lambda_returns, vtrace

__all__ = ["VTrace", "lambda_returns", "metrics", "normalization", "replay", "segments", "vtrace"]
