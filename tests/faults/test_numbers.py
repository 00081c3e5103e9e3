"""Numbers that do not fit, and names that are none, are refused by one clear error."""

import json

import numpy as np
import probes
import pytest

import volvox as vx
from volvox import population
from volvox.evolution import parse_cutoff, schedule
from volvox.rollout import scoring

LARGE = (2**31, 2**40, 10**30)


@pytest.mark.parametrize("number", LARGE)
@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (vx.GA, "population_size"),
        (vx.GA, "num_validation_episodes"),
        (vx.ES, "num_episodes"),
        (vx.A3C, "updates_per_iteration"),
        (vx.A3C, "segment_length"),
        (vx.TD3, "random_timesteps"),
        (vx.TD3, "replay_size"),
        (vx.TD3, "timesteps_per_iteration"),
    ],
    ids=str,
)
def test_counts_beyond_int32_are_refused(settings, name, number):
    with pytest.raises(ValueError, match=f"{name} must be an integer of at most 2147483647, got {number}"):
        settings(**{name: number})


def test_budgets_in_frames_may_be_larger():
    assert vx.A3C(anneal_frames=6_000_000_000).anneal_frames == 6_000_000_000


def test_the_timesteps_of_all_learners_fit_too():
    with pytest.raises(ValueError, match="random_timesteps of all learners"):
        vx.TD3(num_learners=4, random_timesteps=2**30)


@pytest.mark.parametrize("text", ["1099511627776", f"adaptive:5,0.1,2,{2**31}", f"adaptive:{2**31},0.1,2,{2**32}"])
def test_a_limit_beyond_int32_is_refused(text):
    with pytest.raises(ValueError, match="counted up to 2147483647"):
        parse_cutoff(text)


def test_an_environments_limit_beyond_int32_is_refused():
    with pytest.raises(ValueError, match="max_episode_steps must be an integer of at most"):
        probes.corridor(max_episode_steps=2**40)


@pytest.mark.parametrize("value", [10**400, 1e39, 1e-60, f"linear:0.1,0.2,{2**31}", "linear:1e39,1,2"])
def test_a_schedule_beyond_32_bits_is_refused(value):
    with pytest.raises(ValueError, match="mutation_std="):
        schedule("mutation_std", value)


@pytest.mark.parametrize("power", [3.5e38, -3.5e38, 10**400, float("nan"), float("inf"), True, "1"])
def test_a_power_beyond_float32_is_no_lineage(tmp_path, power):
    with pytest.raises(ValueError, match="malformed genome: entry 1"):
        population.lineage.from_json([1, [2, power]])
    path = tmp_path / "elite.json"
    path.write_text(json.dumps([1, [2, power]]))
    with pytest.raises(ValueError, match=r"elite\.json: malformed genome"):
        population.load(path)
    assert population.lineage.from_json([1, [2, 3.4e38]]).mutations[0][1] == float(np.float32(3.4e38))


@pytest.mark.parametrize("run_dir", ["", " "])
def test_an_empty_run_directory_is_refused(tmp_path, monkeypatch, make, quietly, run_dir):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="is empty: name a directory"):
        quietly(make("hill"), steps=1, run_dir=run_dir)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seed", [2**31, -(2**31) - 1, 2**70])
def test_a_seed_of_which_bits_would_be_lost_is_refused(make, quietly, seed):
    with pytest.raises(ValueError, match="seed"):
        quietly(make("hill"), seed=seed, steps=1)


def test_many_episodes_are_played_by_few_environments(monkeypatch):
    """And each once: the first wave's are those of a score of as many episodes."""
    made = []
    env = probes.countdown(num_envs=3)

    def make(seed, **options):
        made.append(options["num_envs"])
        return env.make(seed, **options)

    network = vx.networks.CategoricalMLP(2, (4,))
    algorithm = vx.learn(vx.A3C(segment_length=2), network, env)
    variables = algorithm.variables(algorithm.init(__import__("jax").random.key(0)))
    monkeypatch.setattr(scoring, "_MOST_AT_ONCE", 4)
    play = lambda count: vx.play(env._replace(make=make), algorithm.policy, variables, num_episodes=count)  # noqa: E731
    one, several = play(4), play(10)
    assert made == [4, 4]
    assert several.returns.shape == several.lengths.shape == (10,)
    np.testing.assert_array_equal(one.returns, several.returns[:4])
    np.testing.assert_array_equal(several.returns, several.lengths)  # of whole episodes
    assert len({tuple(several.returns[i : i + 4]) for i in (0, 4)}) == 2  # other starts in each wave


def test_an_evaluation_of_too_many_environments_is_refused():
    env = probes.countdown(num_envs=3)
    with pytest.raises(ValueError, match="num_evaluation_episodes must be an integer of at most 10000"):
        vx.learn(
            vx.A3C(segment_length=2),
            vx.networks.CategoricalMLP(2, (4,)),
            env,
            evaluate_every=10,
            num_evaluation_episodes=100_000,
        )
