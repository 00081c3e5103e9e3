"""Strategies as algorithms: learning, repeatability, resume, cutoffs."""

from types import SimpleNamespace

import jax
import numpy as np
import probes
import pytest

import volvox as vx
from volvox import Validation, networks, population
from volvox.envs import atari
from volvox.rollout import Last
from volvox.rollout import loop as rollout_loop
from volvox.types import Interrupted

# Continuous control with a known optimum: return 0, of the network that answers with its observation.
ENV = probes.target(size=2, num_envs=16, groups=2, max_episode_steps=6)
NOISE = population.Table(size=20_000)
CODE = population.encoding(networks.genotype(networks.MLP(2, hidden=()), ENV.spec), NOISE)


def make(env=ENV, strategy=None, **options):
    if strategy is None:
        strategy = vx.GA(population_size=48, num_parents=6, mutation_std=0.1)
    size = env.spec.num_actions or env.spec.action_shape[0]
    options = {"noise": NOISE, "validation": Validation(num_validation_episodes=6), **options}
    return vx.evolve(strategy, networks.MLP(size, hidden=()), env, **options)


def run(algorithm, state, generations):
    rows = []
    for _ in range(generations):
        state, metrics = algorithm.step(state)
        rows.append(metrics)
    return state, rows


@pytest.fixture(scope="module")
def algorithm():
    """The algorithm of most tests: a state is an argument, so that tests share what is compiled."""
    return make()


def test_ga_learns_the_probe(algorithm):
    state, rows = run(algorithm, algorithm.init(jax.random.key(0)), 12)
    assert rows[0]["validation_mean"] < -0.25
    assert rows[-1]["validation_mean"] > -0.12
    assert [row["generation"] for row in rows] == list(range(1, 13))
    # Scored timesteps of one frame each: 48 episodes of 6 timesteps in training, and 4 times 6 in validation.
    assert [row["training_frames"] for row in rows[:2]] == [288, 576]
    assert [row["frames"] for row in rows[:2]] == [288 + 144, 2 * (288 + 144)]
    assert rows[0]["timesteps"] == rows[0]["frames"]
    assert rows[0]["episodes"] == 48 + 4 * 6
    params = algorithm.variables(state)["Dense_0"]["kernel"]
    assert abs(np.asarray(params) - np.eye(2)).max() < 0.5


def test_results_depend_on_the_key_alone(algorithm):
    """Straight, used a second time, and resumed half-way: the same to the bit, on a pure-JAX environment."""
    straight = algorithm
    first, rows = run(straight, straight.init(jax.random.key(5)), 4)
    again, rows_again = run(straight, straight.init(jax.random.key(5)), 4)
    half, rows_half = run(straight, straight.init(jax.random.key(5)), 2)
    other = make()
    resumed, rows_resumed = run(other, other.restore(straight.save(half)), 2)

    def scores(rows):
        return [(row["training_mean"], row["validation_mean"], row["frames"]) for row in rows]

    assert scores(rows) == scores(rows_again) == scores(rows_half + rows_resumed)
    assert straight.genome(first) == straight.genome(again) == other.genome(resumed)
    rebuilt = population.rebuild(CODE, straight.genome(first))  # the policy is the elite
    jax.tree.map(np.testing.assert_array_equal, straight.variables(first), rebuilt)
    assert straight.save(first).bases == ()  # they are computed again


@pytest.mark.parametrize("key", [jax.random.key(0, impl="rbg"), jax.random.PRNGKey(0)], ids=["rbg", "raw"])
def test_every_kind_of_key_survives_a_checkpoint(key, algorithm):
    state, _ = algorithm.step(algorithm.init(key))
    restored = algorithm.restore(algorithm.save(state))
    assert (restored.key == state.key).all()


def test_bases_rebuilt_from_their_lineages_are_those_that_played():
    noise = population.LowRank()
    algorithm = make(noise=noise)
    state, _ = run(algorithm, algorithm.init(jax.random.key(1)), 5)
    resumed = make(noise=noise)
    restored = resumed.restore(algorithm.save(state))
    for name in ("strategy", "bases", "lineage", "score"):
        jax.tree.map(np.testing.assert_array_equal, getattr(restored, name), getattr(state, name))
    assert (restored.generation, restored.counts) == (state.generation, state.counts)
    assert restored.members is None  # each generation is logged when it is played
    assert resumed.genome(restored) == algorithm.genome(state)


def test_no_compilation_after_the_second_generation(algorithm, caplog):
    state = algorithm.init(jax.random.key(0))
    for _ in range(2):
        state, _ = algorithm.step(state)
    with jax.log_compiles():
        algorithm.step(state)
        assert "Compiling" not in caplog.text
        jax.jit(lambda x: x + 1)(np.float32(1))
        assert "Compiling" in caplog.text


@pytest.mark.slow
def test_scores_of_different_cutoffs_are_never_compared():
    """Rewards are negative: the longer an episode, the lower its return. The first elite must not stay the result."""
    env = probes.target(size=2, num_envs=16, groups=2, max_episode_steps=128)
    validation = Validation(num_elite_candidates=2, num_validation_episodes=6)
    algorithm = make(env, max_episode_steps="adaptive:2,0.1,4,128", validation=validation)
    state, genomes, rows, phases = algorithm.init(jax.random.key(0)), [], [], []
    for _ in range(8):
        state, metrics = algorithm.step(state, monitor=lambda figures: bool(phases.append(figures["phase"])))
        rows.append(metrics)
        genomes.append(algorithm.genome(state))
    assert [row["max_episode_steps"] for row in rows] == [2, 8, 32] + [128] * 5
    assert phases.count("compiling") == 4  # once for each cutoff
    assert all(row["training_length_max"] <= row["max_episode_steps"] for row in rows)
    assert rows[0]["validation_mean"] > max(row["validation_mean"] for row in rows[1:])  # the maximum
    assert genomes[-1] != genomes[0]
    episodes = 0  # of the elite at this cutoff
    for before, row in zip([rows[0], *rows], rows, strict=False):
        episodes = episodes if row["max_episode_steps"] == before["max_episode_steps"] else 0
        episodes = 0 if row["elite_is_new"] else episodes + 6
        assert row["elite_episodes"] == episodes
    assert episodes


@pytest.mark.slow
def test_test_episodes_have_their_own_cutoff():
    env = probes.countdown(low=9, high=9, num_envs=4, groups=2)
    strategy = vx.GA(population_size=8, num_parents=2, mutation_std=0.1)
    validation = Validation(num_test_episodes=5)
    algorithm = make(env, strategy, max_episode_steps=3, test_max_episode_steps=7, validation=validation)
    _, metrics = algorithm.step(algorithm.init(jax.random.key(0)))
    assert metrics["validation_mean"] == 3.0
    assert metrics["test_score"] == 7.0
    assert metrics["fraction_cut"] == 1.0


def test_interrupted_step_leaves_the_state_good(algorithm, monkeypatch):
    monkeypatch.setattr(rollout_loop, "CHUNK_SECONDS", 1e-6)
    interrupted = make()
    state, _ = interrupted.step(interrupted.init(jax.random.key(0)))
    with pytest.raises(Interrupted):
        interrupted.step(state, monitor=lambda progress: True)
    saved = interrupted.save(state)
    again, row = interrupted.step(state)
    resumed, other_row = algorithm.step(algorithm.restore(saved))
    assert resumed.generation == again.generation == 2
    jax.tree.map(np.testing.assert_array_equal, resumed.strategy, again.strategy)
    assert row["training_mean"] == other_row["training_mean"]


def test_bad_cutoffs_and_networks_come_before_work():
    with pytest.raises(ValueError, match="max_episode_steps=0"):
        make(max_episode_steps=0)
    strategy = vx.GA.random_search(population_size=8)
    with pytest.raises(ValueError, match="needs float32\\[B, 2\\]"):
        vx.evolve(strategy, networks.MLP(3), ENV)
    with pytest.raises(ValueError, match="episodic_life"):
        vx.evolve(strategy, networks.DeepGA(18), atari("Seaquest", episodic_life=True, num_envs=2))
    unfinished = SimpleNamespace(population_size=8, init=None, ask=None, tell=None, validates_first=True)
    with pytest.raises(ValueError, match="candidates"):
        vx.evolve(unfinished, networks.MLP(2), ENV)


NSRA_ES = vx.Novelty.nsra_es(behavior=Last("elapsed_steps", 1), num_neighbors=2, archive_size=20)
STRATEGIES = [
    vx.GA(population_size=8, num_parents=2),
    pytest.param(vx.ES(population_size=8, num_bases=2, objective=NSRA_ES), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=["ga", "nsra_es"])
def test_runs_and_resumes_under_the_flags_of_jax(strategy):
    """With 64 bits and with errors for NaN, as JAX_ENABLE_X64=1 and JAX_DEBUG_NANS=1 make them."""
    validation = Validation(num_validation_episodes=1, num_test_episodes=1)  # without standard errors
    with jax.enable_x64(True), jax.debug_nans(True):
        straight, resumed = (make(strategy=strategy, validation=validation) for _ in range(2))
        state, _ = straight.step(straight.init(0))
        expected, row = straight.step(state)
        found, again = resumed.step(resumed.restore(straight.save(state)))
        jax.tree.map(np.testing.assert_array_equal, (found.strategy, found.bases), (expected.strategy, expected.bases))
        assert row["training_mean"] == again["training_mean"]


@pytest.mark.slow
def test_parts_are_timed(algorithm):
    timed = make()
    state = timed.init(0)
    assert min(timed.profile(state, 0.01)) > 0
    _, row = timed.step(state)
    assert row["training_mean"] == algorithm.step(algorithm.init(0))[1]["training_mean"]
