"""Actor-critic methods on the pipeline."""

from volvox.actor_critic.a3c import A3CState, a3c
from volvox.actor_critic.presets import ga3c, modern, mujoco
from volvox.data.returns import lambda_returns
from volvox.data.vtrace import VTrace, vtrace

__all__ = ["A3CState", "VTrace", "a3c", "ga3c", "lambda_returns", "modern", "mujoco", "vtrace"]
