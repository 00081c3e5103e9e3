"""Several learners in one program are the learners of separate runs."""

import re

import jax
import numpy as np
import optax
import probes
import pytest
from flax import linen as nn

import volvox as vx
from volvox.networks import MLP, ActorAndCritic, CategoricalMLP, GaussianMLP, QNetwork, RecurrentActorCritic

CARTPOLE = vx.envs.cartpole(num_envs=4, groups=2)
TARGET = probes.target(num_envs=4, groups=2)
NETWORKS = ActorAndCritic(MLP(2, (8,), activation=nn.relu), QNetwork((8,)))
TD3 = {"batch_size": 8, "random_timesteps": 40, "replay_size": 400, "timesteps_per_iteration": 200}
PPO = {"segment_length": 8, "num_epochs": 2, "num_minibatches": 2, "lag": 1, "rounds_per_iteration": 4}
SPARSE = vx.sparsity.sparse(optax.adam, vx.sparsity.Dynamic(sparsity=0.5, every=4))
CASES = {
    "ppo": (
        [
            vx.PPO(
                **PPO, learning_rate=rate, clip=clip, kl_stop=limit, anneal_timesteps=200, normalize_observations=True
            )
            for rate, clip, limit in [(1e-3, 0.1, 1e-9), (1e-2, 0.2, 1.0), (1e-3, 0.1, 1.0)]
        ],
        CategoricalMLP(2, (8,)),
        CARTPOLE,
    ),
    "ppo, recurrent and sparse": (
        [vx.PPO(**PPO, learning_rate=1e-2, optimizer=SPARSE, entropy_coefficient=weight) for weight in (0.0, 0.1)],
        RecurrentActorCritic(2, MLP(8, hidden=()), width=8),
        CARTPOLE,
    ),
    "pqn": (
        [
            vx.PQN(segment_length=8, num_minibatches=4, rounds_per_iteration=4, learning_rate=rate)
            for rate in (1e-3, 1e-2)
        ],
        MLP(2, (8,), layer_norm=True),
        CARTPOLE,
    ),
    "a3c, recurrent": (
        [vx.A3C(segment_length=5, updates_per_iteration=8, discount=discount) for discount in (0.9, 0.99)],
        RecurrentActorCritic(2, MLP(8, hidden=()), width=8),
        CARTPOLE,
    ),
    "sac": (
        [vx.SAC(**TD3, discount=discount) for discount in (0.9, 0.99)],
        ActorAndCritic.mlp(2, (8,), gaussian=True),
        TARGET,
    ),
    "td3": ([vx.TD3(**TD3, exploration_noise=noise) for noise in (0.1, 0.3)], NETWORKS, TARGET),
}


def test_without_evaluations_the_learner_with_the_best_episodes_is_played():
    algorithm = vx.learn(vx.A3C(), CategoricalMLP(2, (8,)), CARTPOLE, num_learners=3)
    state = algorithm.init(0)
    episodes = state.acting.episodes
    returns = episodes.returns.at[:, 0].set(np.float32([1, 3, 2]))
    episodes = episodes._replace(total=episodes.total + 1, returns=returns)
    state = state._replace(acting=state.acting._replace(episodes=episodes))
    jax.tree.map(np.testing.assert_array_equal, algorithm.variables(state), algorithm.learners[1](state))


def test_orthogonal_kernels_are_not_factorised_in_batches():
    """On two cores jaxlib may wait for ever in a batch of them."""
    settings, *rest = CASES["ppo"]
    algorithm = vx.learn(settings, *rest)
    shapes = re.findall(
        r"f32\[([\d,]*)\] \w+:f32\[[\d,]*\] = qr\[", str(jax.make_jaxpr(algorithm.init)(jax.random.key(0)))
    )
    assert len(shapes) > 2
    assert all(len(shape.split(",")) == 2 for shape in shapes)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_learners_of_one_program_are_those_of_separate_runs(name, trained):
    settings, network, env = CASES[name]
    algorithm, state, row = trained(settings, network, env)
    separate = []
    for i, one in enumerate(settings):
        alone, own, own_row = trained(one, network, env, jax.random.fold_in(jax.random.key(0), i))
        close = lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)  # noqa: E731
        jax.tree.map(close, algorithm.learners[i](state), alone.variables(own))
        assert int(state.learning.update[i]) == int(own.learning.update) > 0
        separate.append(own_row)
    if name == "ppo":  # the first stops its epochs early
        assert state.learning.update[0] < state.learning.update[2]
    rates = {name for name in row if "per_second" in name}
    for metric in separate[0].keys() - rates - {"update", "frames", "timesteps", "episodes"}:
        each = [one[metric] for one in separate]
        np.testing.assert_allclose(row[f"{metric}_each"], each, rtol=1e-3, atol=1e-4, err_msg=metric)
        expected = max(each) if metric == "training_best" else np.mean(each)
        assert row[metric] == pytest.approx(expected, rel=1e-3, abs=1e-4)
    assert row["frames"] == sum(one["frames"] for one in separate)
    assert row["timesteps"] == row["frames"] // len(settings)


RATES = (1e-3, 1e-2, 3e-2)
SETTINGS = [vx.A3C(segment_length=8, updates_per_iteration=4, learning_rate=rate) for rate in RATES]
NETWORK = CategoricalMLP(2, (8,))


def train(run_dir, steps):
    algorithm = vx.learn(SETTINGS, NETWORK, CARTPOLE, evaluate_every=64, num_evaluation_episodes=2)
    run = vx.train(algorithm, run_dir=run_dir, steps=steps, progress=False)
    algorithm.close()
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of three learners."""
    return train(tmp_path_factory.mktemp("run"), 3)


def test_a_loaded_and_resumed_run_is_the_straight_run(run, tmp_path):
    train(tmp_path, 1)
    straight, resumed = run, vx.load(tmp_path).resume(steps=3, progress=False)
    resumed.algorithm.close()
    jax.tree.map(np.testing.assert_array_equal, resumed.state.learning, straight.state.learning)
    names = [name for name in straight.metrics[-1] if "second" not in name]
    assert [resumed.metrics[-1][name] for name in names] == [straight.metrics[-1][name] for name in names]


def test_one_of_several_learners_is_a_run(run):
    learner = run.learner(2)
    first = run.metrics[-1]
    assert learner.metrics[-1]["training_mean"] == first["training_mean_each"][2]
    assert learner.metrics[-1]["frames"] == first["frames"] // 3
    assert "episodes" not in learner.metrics[-1]  # they are of all learners
    same = lambda x, y: np.testing.assert_array_equal(x, y[2])  # noqa: E731
    jax.tree.map(same, learner.variables(), run.state.learning.params)
    best = int(np.argmax(run.state.evaluated.latest))
    jax.tree.map(np.testing.assert_array_equal, run.variables("last"), run.learner(best).variables())
    for missing in (-1, 3):
        with pytest.raises(ValueError, match="3 learners"):
            run.learner(missing)


def test_learners_with_different_settings_are_methods_of_a_comparison_and_show_in_reports(run):
    comparison = vx.compare({"a3c": run.run_dir}, metric="training_mean", x="timesteps")
    found = {float(row["settings"]["learning_rate"]): row["score"] for row in comparison.rows}
    assert found == pytest.approx(dict(zip(RATES, run.metrics[-1]["training_mean_each"], strict=True)))
    assert [row["runs"] for row in comparison.rows] == [1] * 3
    html = run.report().read_text()
    assert "[0.001, 0.01, 0.03]" in html
    assert "best " in html
    axes = run.plot().axes[0]
    assert any("range of learners" in text.get_text() for text in axes.get_legend().get_texts())


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        ([vx.PPO(value_clip=0.2), vx.PPO()], {}, "value_clip"),
        ([vx.PPO(), vx.A3C()], {}, "A3C"),
        ([vx.PPO(), vx.PPO()], {"num_learners": 3}, "num_learners"),
        ([], {}, "0 learners"),
    ],
)
def test_settings_that_are_no_one_program_are_refused(settings, options, message):
    with pytest.raises(ValueError, match=message):
        vx.learn(settings, NETWORK, CARTPOLE, **options)


def test_the_learner_whose_actions_are_nan_is_named():
    """Python steps these environments, and refuses the action before the numbers of the learners are checked."""
    env = vx.envs.gymnasium("Pendulum-v1", num_envs=4, groups=2)
    algorithm = vx.learn(vx.PPO(**PPO), GaussianMLP(1, (8,)), env, num_learners=2)
    state = algorithm.init(0)
    params = jax.tree.map(lambda x: x.at[1].set(np.nan), state.learning.params)
    state = state._replace(learning=state.learning._replace(params=params))
    with pytest.raises(FloatingPointError, match=r"action .* NaN.*learners 1") as caught:
        algorithm.step(state)
    assert caught.value.learners == [1]


PRESETS = [vx.A3C.ga3c, vx.A3C.mujoco, vx.PPO.atari, vx.PPO.mujoco, vx.PQN.atari, vx.PQN.cleanrl]


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.__qualname__)
def test_presets_are_equal_each_time(preset):
    """Otherwise learners with a preset, made by several calls, could not share a program."""
    assert preset() == preset()
    assert hash(preset()) == hash(preset())
