"""Networks, and what makes policies of them."""

from volvox.networks.actor_critic import (
    GA3C,
    ActorCritic,
    GaussianMLP,
    NatureTorso,
    RecurrentActorCritic,
    SmallTorso,
)
from volvox.networks.deep_ga import DeepGA
from volvox.networks.interception import use_kernels
from volvox.networks.mlp import MLP
from volvox.networks.policy import policy, policy_from_functions

__all__ = [
    "GA3C",
    "MLP",
    "ActorCritic",
    "DeepGA",
    "GaussianMLP",
    "NatureTorso",
    "RecurrentActorCritic",
    "SmallTorso",
    "policy",
    "policy_from_functions",
    "use_kernels",
]
