"""Populations in slots: every episode played once, scored right, the same in any layout and both forms of the loop."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

from volvox import ES, Validation, evolve, networks, population
from volvox.envs import atari, preprocessing
from volvox.rollout import slots
from volvox.rollout.behaviors import Last, Nothing
from volvox.rollout.evaluator import PopulationEvaluator
from volvox.types import Population

NOISE = population.Table(size=5_000)


def population_of(code, n, episodes=1, priority=None, num_bases=3):
    keys = jax.random.split(jax.random.key(1), 2)
    noise = jax.vmap(lambda seed: code.noise.sample(code.data, seed, code.like))
    return Population(
        bases=noise(code.draw_seeds(keys[0], (num_bases,))),
        parent=jnp.arange(n, dtype=jnp.int32) % num_bases,
        seed=code.draw_seeds(keys[1], (n,)),
        scale=jnp.full(n, 0.5),
        initial=jnp.zeros(n, bool),
        episodes=jnp.broadcast_to(jnp.asarray(episodes, jnp.int32), (n,)),
        priority=jnp.zeros(n) if priority is None else priority,
    )


class Played:
    """An evaluator, whose environments are driven from Python if `host`."""

    def __init__(self, env, *, capacity=64, host=False, hidden=(4,), net=None, behavior=None, noise=NOISE):
        size = env.spec.num_actions or env.spec.action_shape[0]
        net = net or networks.genotype(networks.MLP(size, hidden=hidden), env.spec)
        recipe = env._replace(make=lambda seed, **given: env.make(seed, **{**given, "host": True})) if host else env
        self.evaluator = PopulationEvaluator(net, noise, recipe, behavior or Nothing(), capacity)
        self.code, self.close, self.cutoff = self.evaluator.encoding, self.evaluator.close, env.spec.max_episode_steps

    def evaluate(self, members, num_episodes, *, seed=0, **options):
        return self.evaluator.evaluate(
            members, num_episodes, max_episode_steps=self.cutoff, seed=seed, pool_seed=0, **options
        )

    @property
    def loop(self):
        (loop,) = self.evaluator._loops.values()
        return loop


@pytest.fixture(scope="module")
def two_slots():
    """An evaluator with two slots and episodes of four timesteps."""
    played = Played(probes.countdown(low=4, high=4, num_envs=2))
    yield played
    played.close()


@pytest.mark.parametrize("host", [False, True], ids=["traced", "driven"])
def test_every_episode_is_played_once_and_scored(host):
    """A countdown's return is its length, and so is its last `elapsed_steps`; members play unequal numbers."""
    env = probes.countdown(low=1, high=9, num_envs=6, groups=2)
    played = Played(env, host=host, behavior=Last("elapsed_steps", 1))
    episodes = jnp.array([3, 1, 0, 2] * 5)
    result, statistics = played.evaluate(population_of(played.code, 20, episodes), 3)
    np.testing.assert_array_equal(result.valid, np.arange(3)[None] < np.asarray(episodes)[:, None])
    np.testing.assert_array_equal(result.returns, result.lengths.astype(jnp.float32))
    np.testing.assert_array_equal(result.behaviors[:, :, 0], result.lengths)
    lengths = np.asarray(result.lengths)[np.asarray(result.valid)]
    assert lengths.min() >= 1
    assert lengths.max() <= 9
    assert not np.asarray(result.lengths)[~np.asarray(result.valid)].any()
    # Every episode costs its length and one reset step; the first reset of a slot is the restart.
    assert statistics.stepped >= lengths.sum() + 30
    assert 0 < statistics.occupancy <= 1


def test_a_later_population_may_have_more_episodes():
    played = Played(probes.countdown(low=2, high=2, num_envs=2), capacity=3)
    for episodes in (1, 2):
        result, _ = played.evaluate(population_of(played.code, 3, episodes), episodes)
        assert np.asarray(result.valid).all()
    played.close()


def test_members_play_their_own_parameters():
    """On the target probe a linear policy's return follows from its parameters; each member must get its own."""
    env = probes.target(size=2, num_envs=4, groups=2, max_episode_steps=5)
    played = Played(env, hidden=())
    members = population_of(played.code, 13)
    identity = jax.tree.map(lambda x: jnp.eye(2) if x.ndim == 2 else jnp.zeros_like(x), played.code.like)
    bases = jax.tree.map(lambda perfect, x: x.at[1].set(perfect), identity, members.bases)
    # Members of base 1 with no noise act perfectly: return 0. The others do not.
    members = members._replace(bases=bases, scale=jnp.where(members.parent == 1, 0.0, 0.5))
    result, _ = played.evaluate(members, 1)
    perfect = np.asarray(members.parent) == 1
    np.testing.assert_allclose(np.asarray(result.returns)[perfect, 0], 0.0, atol=1e-5)
    assert (np.asarray(result.returns)[~perfect, 0] < -0.01).all()
    np.testing.assert_array_equal(result.lengths, 5)


def test_long_members_start_first_and_makespan_is_counted(two_slots):
    members = population_of(two_slots.code, 6, priority=jnp.arange(6.0))
    queue = slots.make_queue(members._replace(bases=()), jax.random.key(0), None, 1, 8)
    np.testing.assert_array_equal(queue.member[:6], [5, 4, 3, 2, 1, 0])
    result, statistics = two_slots.evaluate(members, 1)
    np.testing.assert_array_equal(result.lengths, 4)
    # Two slots, three episodes each, four steps and a reset step every time.
    assert statistics.makespan == 3 * (4 + 1)
    assert statistics.makespan_over_bound(np.asarray(result.lengths)) == pytest.approx(15 / 12)
    assert statistics.occupancy == 1.0


def test_idle_groups_are_not_stepped():
    env = probes.countdown(low=7, high=7, num_envs=4, groups=2)
    played = Played(env)
    _, statistics = played.evaluate(population_of(played.code, 1), 1)
    assert statistics.stepped == 2 * 8  # one group of two slots
    assert statistics.occupancy == 0.5


def test_parts_of_a_population_have_seeds_of_their_own(two_slots, monkeypatch):
    """Environments without keys, such as Gymnasium's, are seeded when a rollout begins."""
    members = population_of(two_slots.code, 4)
    two_slots.evaluate(members, 1)
    seeds, restart = [], two_slots.loop.restart
    monkeypatch.setattr(two_slots.loop, "restart", lambda seed: seeds.append(seed) or restart(seed))
    for first in (None, 0, 4, 4):
        part = None if first is None else (jnp.arange(first, first + 4), jnp.zeros(4, jnp.int32))
        two_slots.evaluate(members, 1, seed=3, part=part)
    assert seeds[0] == 3
    assert seeds[2] == seeds[3]
    assert len({*seeds}) == 3


@pytest.mark.slow
def test_loops_of_another_cutoff_or_kind_are_closed():
    played = Played(probes.countdown(low=4, high=4, num_envs=2))
    members = population_of(played.code, 2)
    for test, cutoff, loops in ((False, 9, 1), (False, 3, 1), (True, 9, 2), (True, 2, 2)):
        played.cutoff = cutoff
        result, _ = played.evaluate(members, 1, test=test)
        np.testing.assert_array_equal(result.lengths, min(cutoff, 4))
        assert len(played.evaluator._loops) == loops


def test_strange_priorities_lose_no_episode(two_slots):
    strange = jnp.array([jnp.nan, -jnp.inf, jnp.inf, 0.0, jnp.nan, 3.0])
    members = population_of(two_slots.code, 6, jnp.array([2, 1, 2, 0, 1, 2]), priority=strange)
    result, _ = two_slots.evaluate(members, 2)
    np.testing.assert_array_equal(result.valid.sum(axis=1), [2, 1, 2, 0, 1, 2])


def test_a_closed_evaluator_makes_its_environments_again(two_slots):
    members = population_of(two_slots.code, 2)
    first, _ = two_slots.evaluate(members, 1)
    two_slots.close()
    jax.tree.map(np.testing.assert_array_equal, two_slots.evaluate(members, 1)[0], first)


def test_recurrent_state_begins_anew_with_each_episode():
    """A policy that counts its steps and turns back after three walks 3 right and 1 left, in every episode."""

    def apply(variables, observation, state):
        del variables
        right = jnp.where(state < 3, 1.0, -1.0)
        return jnp.stack([-right, right], axis=-1) + 0 * observation, state + 1

    env = probes.corridor(length=4, max_episode_steps=4, num_envs=2, groups=1)
    like = networks.genotype(networks.MLP(2, hidden=()), env.spec)
    counting = like.policy._replace(initial_state=lambda batch: jnp.zeros(batch, jnp.int32), apply=apply)
    played = Played(env, capacity=16, net=like._replace(policy=counting))
    result, _ = played.evaluate(population_of(played.code, 5, 3), 3)
    np.testing.assert_array_equal(result.returns, 2 / 4)
    np.testing.assert_array_equal(result.lengths, 4)


def test_a_failure_closes_the_environments():
    env, closed = probes.countdown(num_envs=2, groups=1), []

    def failing(state):
        raise ValueError("the emulator failed")

    def make(seed, **given):
        (group,) = env.make(seed, **{**given, "host": True})
        return (group._replace(send=lambda state, action: failing(state), close=lambda: closed.append(True)),)

    played = Played(env._replace(make=make))
    for times in (1, 2):
        with pytest.raises(ValueError, match="emulator"):
            played.evaluate(population_of(played.code, 2), 1)
        assert len(closed) == times


@pytest.mark.slow
def test_atari_traced_and_driven_agree():
    """Real emulators: the same population scores the same in both forms, cut episodes and restarts included."""
    env = atari("Assault", num_envs=4, groups=2, max_episode_steps=90, threads=2)
    net = networks.genotype(networks.DeepGA(env.spec.num_actions, size="small"), env.spec)
    results = []
    for host in (False, True):
        played = Played(env, host=host, net=net, noise=population.Table())
        results.append([played.evaluate(population_of(played.code, 6), 1, seed=3)[0] for _ in range(2)])
        played.close()
    jax.tree.map(np.testing.assert_array_equal, *results)
    # Scores differ between members.
    np.testing.assert_array_equal(results[0][0].lengths, 90)
    assert len(np.unique(results[0][0].returns)) > 2


N, E = 11, 3
ENVS = {
    "drawn timesteps": partial(probes.target, size=2, max_episode_steps=5),
    "an opening": lambda **layout: preprocessing.opening(probes.countdown(low=1, high=9, **layout), (1, 0)),
}


def evaluated(played, *, part=None, seed=5):
    """The evaluation of the whole population, or of a part of it."""
    members = population_of(played.code, N, jnp.array([E, 1, 0, 2] * 3)[:N], priority=jnp.arange(N) % 4.0)
    if part is not None:
        bases, rows = members.bases, members._replace(bases=())
        members = jax.tree.map(lambda x: x[part[0]], rows)._replace(
            bases=bases, episodes=jnp.ones(part[0].shape, jnp.int32)
        )
    result, _ = played.evaluate(members, E if part is None else 1, part=part, seed=seed)
    return jax.tree.map(np.asarray, result)


@pytest.mark.parametrize("name", [pytest.param("drawn timesteps", marks=pytest.mark.slow), "an opening"])
def test_slots_groups_and_forms_change_nothing(name):
    layouts = ((4, 2, False), (9, 3, False), (2, 1, True))
    all_played = [Played(ENVS[name](num_envs=num_envs, groups=groups), host=host) for num_envs, groups, host in layouts]
    reference, *others = map(evaluated, all_played)
    for found in others:
        # Where environments compute with rounding, the compiler rounds otherwise for another size of a group.
        tolerance = 1e-6 if name == "drawn timesteps" else 0
        jax.tree.map(partial(np.testing.assert_allclose, rtol=tolerance), found, reference)


@pytest.mark.slow
def test_a_population_may_be_cut_anywhere():
    """Single episodes, in another order and in parts, are those of the whole."""
    whole = evaluated(Played(ENVS["drawn timesteps"](num_envs=6, groups=2)))
    small = Played(ENVS["drawn timesteps"](num_envs=3, groups=1))
    member, episode = np.nonzero(whole.valid)
    order = np.random.default_rng(0).permutation(member.size)
    for rows in np.array_split(order, 3):
        part = jnp.asarray(member[rows], jnp.int32), jnp.asarray(episode[rows], jnp.int32)
        found = evaluated(small, part=part)
        np.testing.assert_array_equal(found.returns[:, 0], whole.returns[member[rows], episode[rows]])


def test_episodes_of_a_member_differ():
    played = Played(ENVS["drawn timesteps"](num_envs=4, groups=1))
    result = evaluated(played)
    first = result.returns[np.asarray(result.valid).sum(1) == E]
    assert (np.abs(np.diff(first, axis=1)) > 0).all()
    assert (evaluated(played, seed=0).returns != result.returns).any()


def generations(num_envs, groups):
    env = probes.corridor(num_envs=num_envs, groups=groups, random_start=True)
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
