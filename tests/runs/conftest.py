"""Small algorithms: one of a few lines that compiles nothing, and two on pure-JAX environments."""

import jax
import jax.numpy as jnp
import optax
import pytest

import volvox as vx
from volvox.types import Algorithm, Env, EnvSpec, Interrupted, Policy

SPEC = EnvSpec("walk", (1,), "float32", 2, None, None, None, 10, 1)


def random_walk(*, size=3, hook=lambda step: None, **changes):
    """Adds noise to a vector; `hook(step)` is called within each step."""

    def step(state, *, monitor=None, budget=None):
        number = state["step"] + 1
        hook(number)
        if monitor is not None and monitor({"phase": "training", "done": 1, "total": 1}):
            raise Interrupted
        x = state["x"] + jax.random.normal(jax.random.fold_in(state["key"], number), (size,))
        metrics = {"training_best": float(x.sum()), "frames": 10 * number, "nothing": float("nan")}
        metrics["timesteps"] = 5 * number
        return {"key": state["key"], "x": x, "step": number}, metrics

    algorithm = Algorithm(
        init=lambda key: {"key": key, "x": jnp.zeros(size), "step": 0},
        step=step,
        variables=lambda state: state["x"],
        policy=Policy(
            init=lambda key: jnp.zeros(1),
            initial_state=lambda batch_size: (),
            apply=lambda variables, observation, state: (observation, state),
            sample=lambda key, output: output,
            mode=lambda output: output,
            config={},
        ),
        env=Env(SPEC, 1, 1, lambda seed, **_: (), {}),
        config={"type": "tests.random_walk", "size": size},
        close=lambda: None,
        genome=lambda state: [state["step"], [int(1000 * abs(state["x"][0])), 0.5]],
        log=lambda state: {"x": state["x"]},
    )
    return algorithm._replace(**changes)


def evolution(env=None, **settings):
    env = env or vx.envs.cartpole(num_envs=8, max_episode_steps=20)
    small = {"population_size": 8, "num_parents": 2}
    network = vx.networks.MLP(env.spec.num_outputs, (4,))
    return vx.evolve(vx.GA(**small | settings), network, env, noise=vx.population.Generator())


def learning(env=None, num_learners=1, **settings):
    env = env or vx.envs.cartpole(num_envs=4)
    small = {"segment_length": 3, "learning_rate": 0.01, "optimizer": optax.adam, "updates_per_iteration": 3}
    network = vx.networks.CategoricalMLP(env.spec.num_outputs, (4,))
    return vx.learn(vx.A3C(**small | settings), network, env, num_learners=num_learners)


def train(algorithm, run_dir=None, **options):
    return vx.train(algorithm, run_dir=run_dir, **{"progress": False, "loggers": (), **options})


@pytest.fixture(scope="session")
def evolved(tmp_path_factory):
    """A finished run of evolution, which tests share."""
    return train(evolution(), tmp_path_factory.mktemp("runs") / "evolved", steps=2)


def without_times(rows):
    return [{name: value for name, value in row.items() if "second" not in name} for row in rows]


def assert_equal_trees(ours, theirs):
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        if hasattr(a, "dtype") and jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = map(jax.random.key_data, (a, b))
        assert (jnp.asarray(a) == jnp.asarray(b)).all()
