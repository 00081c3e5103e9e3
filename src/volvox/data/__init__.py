"""What learners store and compute: transitions, segments, minibatches, replay, returns, metrics, normalisation.

The modules `transitions`, `segments`, `minibatches`, `replay`, `metrics` and `normalization` are used by their names:
`replay.init`, `replay.add`, `replay.sample`.
"""

from volvox.data import metrics, minibatches, normalization, replay, segments, transitions
from volvox.data.returns import VTrace, lambda_returns, vtrace

__all__ = ["VTrace", "lambda_returns", "metrics", "minibatches", "normalization", "replay", "segments", "transitions"]
__all__ += ["vtrace"]
