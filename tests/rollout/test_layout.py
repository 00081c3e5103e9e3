"""Results of a population do not depend on how it is laid out: slots, groups, parts, the form of the loop."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

from volvox import ES, Validation, evolve, networks, population
from volvox.envs import preprocessing
from volvox.rollout import Last
from volvox.rollout.behaviors import Nothing
from volvox.rollout.evaluator import PopulationEvaluator
from volvox.types import Population

N, E = 11, 3
ENVS = {
    "drawn timesteps": partial(probes.target, size=2, max_episode_steps=5),
    "an opening": lambda **layout: preprocessing.opening(probes.countdown(low=1, high=9, **layout), (1, 0)),
}


def everyone(code, num_bases=3):
    keys = jax.random.split(jax.random.key(1), 2)
    noise = jax.vmap(lambda seed: code.noise.sample(code.data, seed, code.like))
    return Population(
        bases=noise(code.draw_seeds(keys[0], (num_bases,))),
        parent=jnp.arange(N, dtype=jnp.int32) % num_bases,
        seed=code.draw_seeds(keys[1], (N,)),
        scale=jnp.full(N, 0.5),
        initial=jnp.zeros(N, bool),
        episodes=jnp.array([E, 1, 0, 2] * 3, jnp.int32)[:N],
        priority=jnp.arange(N) % 4.0,
    )


def played(name, num_envs, groups, *, host=False, part=None, seed=5):
    """The evaluation of the whole population, or of a part of it."""
    env = ENVS[name](num_envs=num_envs, groups=groups)
    net = networks.genotype(networks.MLP(env.spec.num_actions or env.spec.action_shape[0], hidden=(4,)), env.spec)
    recipe = env._replace(make=lambda seed, **given: env.make(seed, **{**given, "host": host}))
    evaluator = PopulationEvaluator(net, population.Table(size=5_000), recipe, Nothing(), N * E)
    members = everyone(evaluator.encoding)
    if part is not None:
        bases, rows = members.bases, members._replace(bases=())
        members = jax.tree.map(lambda x: x[part[0]], rows)._replace(
            bases=bases, episodes=jnp.ones(part[0].shape, jnp.int32)
        )
    options = {"max_episode_steps": env.spec.max_episode_steps, "seed": seed, "pool_seed": 0}
    result, _ = evaluator.evaluate(members, E if part is None else 1, part=part, **options)
    evaluator.close()
    return jax.tree.map(np.asarray, result)


@pytest.mark.parametrize("name", [pytest.param("drawn timesteps", marks=pytest.mark.slow), "an opening"])
def test_slots_groups_and_forms_change_nothing(name):
    reference = played(name, 4, 2)
    for num_envs, groups, host in ((9, 3, False), (2, 1, True)):
        found = played(name, num_envs, groups, host=host)
        # Where environments compute with rounding, the compiler rounds otherwise for another size of a group.
        tolerance = 1e-6 if name == "drawn timesteps" else 0
        jax.tree.map(partial(np.testing.assert_allclose, rtol=tolerance), found, reference)


@pytest.mark.slow
def test_a_population_may_be_cut_anywhere():
    """Single episodes, in another order and in parts, are those of the whole."""
    whole = played("drawn timesteps", 6, 2)
    member, episode = np.nonzero(whole.valid)
    order = np.random.default_rng(0).permutation(member.size)
    for rows in np.array_split(order, 3):
        part = jnp.asarray(member[rows], jnp.int32), jnp.asarray(episode[rows], jnp.int32)
        found = played("drawn timesteps", 3, 1, part=part)
        np.testing.assert_array_equal(found.returns[:, 0], whole.returns[member[rows], episode[rows]])


def test_episodes_of_a_member_differ():
    result = played("drawn timesteps", 4, 1)
    first = result.returns[np.asarray(result.valid).sum(1) == E]
    assert (np.abs(np.diff(first, axis=1)) > 0).all()
    unseeded = [played("drawn timesteps", 4, 1, seed=seed).returns for seed in (0, 1)]
    assert (unseeded[0] != unseeded[1]).any()


def generations(num_envs, groups):
    env = probes.countdown(low=1, high=9, num_envs=num_envs, groups=groups)
    validation = Validation(num_elite_candidates=2, num_validation_episodes=2)
    strategy = ES(population_size=8, noise_std=0.3)
    algorithm = evolve(strategy, networks.MLP(2, (8,)), env, validation=validation)
    state, rows = algorithm.init(jax.random.key(3)), []
    for _ in range(3):
        state, metrics = algorithm.step(state)
        rows.append({name: metrics[name] for name in ("training_mean", "validation_mean", "frames")})
    kept = jax.tree.map(np.asarray, (state.bases, state.score, rows))
    algorithm.close()
    return kept


@pytest.mark.optimized
def test_runs_do_not_depend_on_the_layout():
    """Scores and parameters, bit for bit."""
    first, other = (generations(*layout) for layout in ((4, 1), (6, 3)))
    jax.tree.map(np.testing.assert_array_equal, other, first)
