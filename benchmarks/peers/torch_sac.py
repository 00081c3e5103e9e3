"""A peer: SAC's update in PyTorch, written and measured as in `torch_td3.py`.

    python benchmarks/peers/torch_sac.py --observation 17 --action 6

The constants are those of the paper (Haarnoja et al. 2018, arXiv 1812.05905), and the temperature is learned.
"""

import copy
import math

import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import get_ema_multi_avg_fn
from torch_td3 import DISCOUNT, TARGET_RATE, main, perceptron


class SAC:
    """Actor, critics, target critics, temperature and optimisers; `observation` and `action` are lengths."""

    def __init__(self, observation: int, action: int, *, width: int = 256, learning_rate: float = 3e-4):
        self.actor = perceptron(observation, 2 * action, width)
        self.critics = nn.ModuleList([perceptron(observation + action, 1, width) for _ in range(2)])
        self.target_critics, self.target_entropy = copy.deepcopy(self.critics), -action
        self.log_temperature = torch.zeros((), requires_grad=True)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=learning_rate, fused=True)
        self.critic_optimizer = torch.optim.Adam(self.critics.parameters(), lr=learning_rate, fused=True)
        self.temperature_optimizer = torch.optim.Adam([self.log_temperature], lr=learning_rate, fused=True)
        self._targets, self._sources = list(self.target_critics.parameters()), list(self.critics.parameters())
        self._move = get_ema_multi_avg_fn(1 - TARGET_RATE)

    def act(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Actions `[B, A]` and logarithms `[B, 1]` of their densities."""
        mean, log_std = self.actor(observation).chunk(2, 1)
        log_std, noise = log_std.clamp(-20, 2), torch.randn_like(mean)
        x = mean + log_std.exp() * noise
        log_prob = -0.5 * noise**2 - log_std - 0.5 * math.log(2 * math.pi)
        log_prob = log_prob - 2 * (math.log(2) - x - functional.softplus(-2 * x))
        return torch.tanh(x), log_prob.sum(1, keepdim=True)

    def update(self, i: int, batch: list[torch.Tensor]) -> None:
        """Update `i` by observations, actions, rewards `[B, 1]`, terminations `[B, 1]` and next observations."""
        del i
        observation, action, reward, terminated, next_observation = batch
        temperature = self.log_temperature.exp().detach()
        with torch.no_grad():
            next_action, log_prob = self.act(next_observation)
            after = torch.cat([next_observation, next_action], 1)
            values = torch.minimum(*(critic(after) for critic in self.target_critics))
            target = reward + DISCOUNT * (1 - terminated) * (values - temperature * log_prob)
        both = torch.cat([observation, action], 1)
        loss = 0.5 * sum(functional.mse_loss(critic(both), target) for critic in self.critics)
        self.critic_optimizer.zero_grad()
        loss.backward()
        self.critic_optimizer.step()
        self.critics.requires_grad_(False)  # only the gradient of the input is needed
        action, log_prob = self.act(observation)
        both = torch.cat([observation, action], 1)
        loss = (temperature * log_prob - torch.minimum(*(critic(both) for critic in self.critics))).mean()
        self.actor_optimizer.zero_grad()
        loss.backward()
        self.actor_optimizer.step()
        self.critics.requires_grad_(True)
        self._move(self._targets, self._sources, 0)
        loss = -self.log_temperature * (log_prob.detach() + self.target_entropy).mean()
        self.temperature_optimizer.zero_grad()
        loss.backward()
        self.temperature_optimizer.step()


if __name__ == "__main__":
    main(SAC)
