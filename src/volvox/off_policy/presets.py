"""Settings of `td3` that belong together: `td3(actor, critic, env, **reference())`."""

from typing import Any


def reference() -> dict[str, Any]:
    """The settings that reference implementations of TD3 share (Fujimoto et al. 2018, arXiv 1802.09477).

    Two layers of 256 units (`networks.MLP` with ReLU, `networks.QNetwork`), one update a step, a million steps.
    """
    return {
        "learning_rate": 3e-4,
        "batch_size": 256,
        "discount": 0.99,
        "target_rate": 0.005,
        "exploration_noise": 0.1,
        "target_noise": 0.2,
        "target_noise_clip": 0.5,
        "policy_delay": 2,
        "random_steps": 25_000,
        "replay_size": 1_000_000,
        "updates_per_env_step": 1.0,
        "num_steps": 1,
    }
