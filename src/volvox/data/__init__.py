"""What learners store and compute: segments, replay, returns, scores of episodes, moments of observations, metrics.

The modules `segments`, `replay`, `episode_statistics`, `normalization` and `metrics` are used by their names:
`replay.init`, `replay.add`, `replay.sample`.
"""

from volvox.data import episode_statistics, metrics, normalization, replay, segments
from volvox.data.returns import VTrace, lambda_returns, vtrace

__all__ = [
    "VTrace",
    "episode_statistics",
    "lambda_returns",
    "metrics",
    "normalization",
    "replay",
    "segments",
    "vtrace",
]
