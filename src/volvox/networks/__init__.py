"""Networks, and the genotypes and policies that are made of them."""

from volvox.networks.actor_critics import (
    GA3C,
    ActorCritic,
    CategoricalMLP,
    GaussianMLP,
    NatureTorso,
    QValues,
    RecurrentActorCritic,
    RecurrentQValues,
    SmallTorso,
    actor_critic,
    q_network,
)
from volvox.networks.genotypes import DeepGA, VirtualBatchNorm, VirtualBatchNormNet, genotype, genotype_from_functions
from volvox.networks.initializers import fan_in_uniform
from volvox.networks.interception import Grouped
from volvox.networks.perceptrons import MLP, ActorAndCritic, NextObservationNetwork, QNetwork

__all__ = [
    "GA3C",
    "MLP",
    "ActorAndCritic",
    "ActorCritic",
    "CategoricalMLP",
    "DeepGA",
    "GaussianMLP",
    "Grouped",
    "NatureTorso",
    "NextObservationNetwork",
    "QNetwork",
    "QValues",
    "RecurrentActorCritic",
    "RecurrentQValues",
    "SmallTorso",
    "VirtualBatchNorm",
    "VirtualBatchNormNet",
    "actor_critic",
    "fan_in_uniform",
    "genotype",
    "genotype_from_functions",
    "q_network",
]
