"""Networks, and what makes genotypes of them."""

from volvox.networks.actor_critics import (
    GA3C,
    ActorCritic,
    GaussianMLP,
    NatureTorso,
    RecurrentActorCritic,
    SmallTorso,
    actor_critic,
)
from volvox.networks.circulant import BlockCirculantDense, Grouped
from volvox.networks.deep_ga import DeepGA
from volvox.networks.genotypes import genotype, genotype_from_functions
from volvox.networks.interception import use_kernels
from volvox.networks.mlp import MLP
from volvox.networks.off_policy import ActorAndCritic, NextObservationNetwork, QNetwork, actor_and_critics
from volvox.networks.virtual_batch_norm import VirtualBatchNorm, VirtualBatchNormNet, reference_genotype

__all__ = [
    "GA3C",
    "MLP",
    "ActorAndCritic",
    "ActorCritic",
    "BlockCirculantDense",
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
    "actor_and_critics",
    "actor_critic",
    "genotype",
    "genotype_from_functions",
    "reference_genotype",
    "use_kernels",
]
