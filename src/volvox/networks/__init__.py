"""Networks, and what makes genotypes of them."""

from volvox.networks.actor_critics import (
    GA3C,
    ActorCritic,
    CategoricalMLP,
    GaussianMLP,
    NatureTorso,
    RecurrentActorCritic,
    SmallTorso,
    actor_critic,
)
from volvox.networks.genotypes import genotype, genotype_from_functions
from volvox.networks.interception import Grouped
from volvox.networks.neuroevolution import DeepGA, VirtualBatchNorm, VirtualBatchNormNet, reference_genotype
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
    "RecurrentActorCritic",
    "SmallTorso",
    "VirtualBatchNorm",
    "VirtualBatchNormNet",
    "actor_critic",
    "genotype",
    "genotype_from_functions",
    "reference_genotype",
]
