"""The checks pass environments and strategies of volvox, and find violations of their interfaces."""

import dataclasses
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import volvox as vx
from volvox.testing import check_env, check_strategy

CARTPOLE = vx.envs.cartpole(num_envs=3)


def changed(change=lambda step: step, **functions):
    """Returns a change of an environment: of its time steps, or of functions of its groups."""

    def mutate(group):
        def recv(state):
            state, step = group.recv(state)
            return state, change(step)

        return group._replace(recv=recv, **{name: make(group) for name, make in functions.items()})

    return lambda env: env._replace(make=lambda seed, **options: tuple(map(mutate, env.make(seed, **options))))


def made_by(make):
    return lambda env: env._replace(make=lambda seed, **options: make(env, seed, **options))


def same_groups(env, seed, *, num_envs, num_groups, **options):
    one = {"num_envs": num_envs // num_groups, "num_groups": 1, **options}
    return tuple(env.make(seed, **one)[0] for _ in range(num_groups))


VIOLATIONS = {
    "dtype": (changed(lambda step: step._replace(reward=step.reward.astype(np.int32))), "reward"),
    "observation": (changed(lambda step: step._replace(observation=step.observation[:, :1])), "observations"),
    "extras": (changed(lambda step: step._replace(extras={})), "extras"),
    "never first": (changed(lambda step: step._replace(first=step.first & False)), "`first`"),
    "reward at first": (changed(lambda step: step._replace(reward=step.reward + step.first)), "reward must be 0"),
    "two ends": (changed(lambda step: step._replace(terminated=step.terminated | step.truncated)), "terminated"),
    "not finite": (changed(lambda step: step._replace(reward=np.float32(np.nan) + step.reward)), "finite"),
    "spec": (made_by(lambda env, seed, *, max_episode_steps, **options: env.make(seed, **options)), "spec"),
    "seed": (made_by(lambda env, seed, **options: env.make(0, **options)), "another seed"),
    "groups": (made_by(same_groups), "two groups"),
    "host": (made_by(lambda env, seed, *, host, **options: env.make(seed, **options)), "host"),
    "restart": (changed(restart=lambda group: lambda state, seed=None: state), "restart"),
    "restart seed": (changed(restart=lambda group: lambda state, seed=None: group.restart(state)), "the seed alone"),
}


def test_an_environment_of_volvox_passes():
    check_env(CARTPOLE)
    check_env(vx.envs.gymnasium("CartPole-v1", num_envs=2))


@pytest.mark.parametrize("violation", VIOLATIONS)
def test_violations_of_environments_are_found(violation):
    change, message = VIOLATIONS[violation]
    with pytest.raises(AssertionError, match=message):
        check_env(change(CARTPOLE))


class State(NamedTuple):
    mean: jax.Array
    more: Any = jnp.float32(0)


@dataclasses.dataclass(frozen=True)
class Climber:
    """Moves to the best member."""

    population_size: int = 6

    def init(self, key, encoding):
        return State(jnp.zeros(encoding.num_parameters))

    def ask(self, key, state, encoding):
        noise = jax.random.normal(key, (self.population_size, encoding.num_parameters))
        return vx.population.explicit(vx.population.from_vectors(encoding, state.mean + 0.1 * noise)), state

    def tell(self, key, state, population, evaluation, encoding):
        best = jnp.argmax(vx.evolution.fitness(evaluation))
        return state._replace(mean=vx.population.to_vectors(population.bases)[best]), {}


COUNT = itertools.count()
BAD_STRATEGIES = {
    "dtypes": {"tell": lambda *given: (Climber.tell(*given)[0]._replace(more=jnp.int32(0)), {})},
    "tell": {"tell": lambda *given: Climber.tell(*given)[0]},
    "scalar": {"tell": lambda *given: (Climber.tell(*given)[0], {"mean": given[2].mean})},
    "NaN": {"tell": lambda _, key, state, population, results, code: (state._replace(more=results.returns.mean()), {})},
    "shape": {"ask": lambda _, key, state, code: (vx.population.explicit(code.zeros(5)), state)},
    "key": {"ask": lambda self, key, *given: Climber.ask(self, jax.random.key(0), *given)},
    "pure": {"ask": lambda self, key, *given: Climber.ask(self, jax.random.fold_in(key, next(COUNT)), *given)},
}


def test_a_strategy_that_keeps_its_interface_passes():
    check_strategy(Climber(), num_generations=3)
    check_strategy(vx.GA(population_size=3, num_parents=1), num_generations=1, improves=False)


@pytest.mark.parametrize("message", BAD_STRATEGIES)
def test_violations_of_strategies_are_found(message):
    with pytest.raises(AssertionError, match=message):
        check_strategy(type("Bad", (Climber,), BAD_STRATEGIES[message])())
