"""Small algorithms on pure-JAX environments, and an algorithm of a few lines that needs no compilation worth a word."""

import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
import probes
import pytest

import volvox as vx
from volvox.training import train
from volvox.types import Algorithm, Env, EnvSpec, Interrupted, Policy

SPEC = EnvSpec("hill", (1,), "float32", 2, None, None, None, 10, 1)
EXPERIMENTS = Path(__file__).parents[2] / "experiments"
LINE = probes.target(size=1, num_envs=4, groups=2)
WALK = probes.corridor(length=4, num_envs=4, groups=2)
GA = vx.GA(population_size=8, num_parents=2, mutation_std=0.1, num_elite_candidates=2, num_validation_episodes=2)
ES = vx.ES(population_size=8, num_validation_episodes=2)
TABLE = vx.population.Table(size=20_000)


def hill(*, size=3, watch=lambda number: None):
    """Adds noise to a vector; `watch` is called within each step."""

    def step(state, *, monitor=None):
        number = state["step"] + 1
        watch(number)
        if monitor is not None and monitor({"phase": "training", "done": 1, "total": 1, "frames_per_second": 1.0}):
            raise Interrupted(f"step {number}")
        x = state["x"] + jax.random.normal(jax.random.fold_in(state["key"], number), (size,))
        return {"key": state["key"], "x": x, "step": number}, {"training_best": float(x.sum())}

    return Algorithm(
        init=lambda key: {"key": key, "x": jax.numpy.zeros(size), "step": 0},
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
        config={"algorithm": "hill", "size": size},
        close=lambda: None,
        genome=lambda state: [state["step"], [int(1000 * abs(state["x"][0])), 0.5]],
    )


def evolved(strategy, env=LINE):
    return vx.evolve(strategy, vx.networks.MLP(env.spec.num_actions or 1, hidden=()), env, noise=TABLE)


def a3c(env=WALK, *, network=None, **options):
    small = {"segment_length": 3, "learning_rate": 0.01, "optimizer": optax.adam, "updates_per_iteration": 3}
    network = vx.networks.CategoricalMLP(2, (4,)) if network is None else network
    return vx.learn(vx.A3C(**(small | options)), network, env)


def ppo(env=WALK, *, network=None, **options):
    small = {"segment_length": 4, "learning_rate": 0.01, "num_minibatches": 2, "rounds_per_iteration": 2}
    network = vx.networks.CategoricalMLP(2, (4,)) if network is None else network
    return vx.learn(vx.PPO(**(small | options)), network, env)


def td3(env=LINE, **options):
    small = {"batch_size": 8, "random_timesteps": 16, "replay_size": 64, "timesteps_per_iteration": 24}
    actor, critic = vx.networks.MLP(1, hidden=(4,)), vx.networks.QNetwork(hidden=(4,))
    return vx.learn(vx.TD3(**(small | options)), vx.networks.ActorAndCritic(actor, critic), env)


def primal_dual(env=WALK):
    settings = vx.learners.PrimalDual(timesteps_per_iteration=16)
    return vx.learn(settings, vx.networks.CategoricalMLP(2, (4,)), env)


def novelty():
    behavior = vx.rollout.Last("position", 2)
    objective = vx.Novelty.nsr_es(behavior=behavior, num_neighbors=3)
    strategy = vx.ES(population_size=8, num_validation_episodes=2, objective=objective, num_bases=2)
    env = vx.envs.hard_maze(num_envs=4, groups=2)
    return vx.evolve(strategy, vx.networks.MLP(2, hidden=()), env, noise=TABLE, max_episode_steps=8)


MAKERS = {
    "hill": hill,
    "ga": lambda **options: evolved(GA, **options),
    "es": lambda **options: evolved(ES, **options),
    "novelty": novelty,
    "a3c": a3c,
    "ppo": ppo,
    "td3": td3,
    "primal-dual": primal_dual,
}


@pytest.fixture(scope="session")
def make():
    """(name, **options) -> a small algorithm."""
    return lambda name, **options: MAKERS[name](**options)


@pytest.fixture(scope="session")
def quietly():
    """`train` without a display."""
    return lambda algorithm, **options: train(algorithm, **{"progress": False, "loggers": (), **options})


@pytest.fixture
def script(monkeypatch):
    """Imports a script of `experiments`, which finds the files beside it."""

    def load(name):
        monkeypatch.syspath_prepend(EXPERIMENTS)
        spec = importlib.util.spec_from_file_location(name, EXPERIMENTS / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(__import__("sys").modules, name, module)  # dataclasses look their module up
        spec.loader.exec_module(module)
        return module

    return load
