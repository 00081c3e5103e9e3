"""Networks, and what makes policies of them."""

from volvox.networks.deep_ga import DeepGA
from volvox.networks.interception import use_kernels
from volvox.networks.mlp import MLP
from volvox.networks.policy import policy, policy_from_functions

__all__ = ["MLP", "DeepGA", "policy", "policy_from_functions", "use_kernels"]
