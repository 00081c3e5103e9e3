"""Settings of `a3c` that belong together: `a3c(network, env, **ga3c())`."""

from typing import Any


def ga3c() -> dict[str, Any]:
    """GA3C's constants (Babaeizadeh et al. 2017, arXiv 1611.06256, and its published code).

    RMSProp as TensorFlow computes it (the average of squares begins at 1), summed losses, no clipping of gradients; the
    network is `volvox.networks.GA3C`. One thing differs: GA3C updates by one agent's segment or a few, here an update
    sums those of all environments, so it is larger, and there are fewer of them in as many frames. The fewer
    environments, the closer.
    """
    return {
        "segment_length": 5,
        "discount": 0.99,
        "trace_decay": 1.0,
        "learning_rate": 3e-4,
        "optimizer": "rmsprop",
        "optimizer_options": {"decay": 0.99, "eps": 0.1, "initial_scale": 1.0},
        "max_gradient_norm": None,
        "loss_reduction": "sum",
        "entropy_coefficient": 0.01,
        "value_coefficient": 1.0,
        "log_epsilon": 1e-6,
        "reward_bound": 1.0,
        "lag": 1,
        "rounds_per_update": 1,
        "vtrace": False,
    }


def modern() -> dict[str, Any]:
    """What later work settled on: longer segments, V-trace, averaged losses, clipped gradients, Adam.

    IMPALA (Espeholt et al. 2018, arXiv 1802.01561) for V-trace and segments of 20 steps.
    """
    return {
        "segment_length": 20,
        "discount": 0.99,
        "trace_decay": 1.0,
        "learning_rate": 6e-4,
        "optimizer": "adam",
        "optimizer_options": {"eps": 1e-5},
        "max_gradient_norm": 0.5,
        "loss_reduction": "mean",
        "entropy_coefficient": 0.01,
        "value_coefficient": 0.5,
        "log_epsilon": 0.0,
        "reward_bound": 1.0,
        "lag": 1,
        "rounds_per_update": 1,
        "vtrace": True,
    }


def mujoco() -> dict[str, Any]:
    """For continuous control: as `modern`, with unclipped rewards, no entropy bonus and shorter traces.

    Observations and rewards are learned from as they are: no running normalisation.
    """
    return modern() | {
        "trace_decay": 0.95,
        "learning_rate": 3e-4,
        "entropy_coefficient": 0.0,
        "reward_bound": None,
    }
