"""What people type works, or is answered in one line that says what was given and what to do."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest
from flax import linen as nn
from flax import nnx

import volvox as vx
from volvox._arguments import is_true, said, state_and_metrics
from volvox._checks import count, typed_key
from volvox.envs.envpool_tasks import _folded

ENV = probes.corridor(length=3, num_envs=4, groups=2)
NET = vx.networks.MLP(2, ())
GA = vx.GA(population_size=4, num_parents=2, num_elite_candidates=2, num_validation_episodes=1)
TABLE = vx.population.Table(size=20_000)
# PyTorch is no dependency: what is recognised is the path of a class.
Linear = type("Linear", (), {"__module__": "torch.nn.modules.linear", "__call__": lambda self, x: x})
GYMNAX = type("CartPole", (), {"__module__": "gymnax.environments.classic_control.cartpole"})()
GYM = type("CartPoleEnv", (), {"__module__": "gymnasium.envs.classic_control.cartpole"})()


@functools.cache
def algorithm():
    return vx.evolve(GA, NET, ENV, noise=TABLE)


def maker(**options):
    return ENV


def stepping(result):
    return algorithm()._replace(step=lambda state, *, monitor=None: result, close=lambda: None, genome=None)


def two_items():
    return vx.envs.from_functions(
        lambda key: jnp.zeros(1), lambda state, action, key: (state, 0.0), lambda s: s, name="x", num_envs=1,
        max_episode_steps=2, num_actions=2,
    )  # fmt: skip


def four_items(**functions):
    given = {"reset": lambda key: jnp.zeros(1), "step": lambda s, a, k: (s, 0.0, False, {}), "observe": lambda s: s}
    return vx.envs.from_functions(**(given | functions), name="x", num_envs=1, max_episode_steps=2, num_actions=2)


CLASS = r"the class GA itself: make one of it, GA\(\.\.\.\)"
STRATEGY = r"a strategy \(GA\): vx\.evolve\(strategy, network, env\) makes an algorithm"
MISTAKES = {
    "train-strategy-class": (lambda: vx.train(vx.GA, steps=1), f"^train takes an algorithm, .*; got {CLASS}"),
    "train-strategy": (lambda: vx.train(GA, steps=1), f"^train takes an algorithm, .*; got {STRATEGY}"),
    "train-settings": (
        lambda: vx.train(vx.A3C(), steps=1),
        r"settings of a learner \(A3C\): vx\.learn\(settings, netw",
    ),
    "train-env": (lambda: vx.train(ENV, steps=1), r"got an environment \(probe-corridor\)$"),
    "train-network": (lambda: vx.train(NET, steps=1), r"got a network \(MLP\)$"),
    "train-maker": (lambda: vx.train(maker, steps=1), r"the function maker, and not what it returns: call it, maker\("),
    "train-path": (lambda: vx.train("runs/a", steps=1), "got 'runs/a'$"),
    "train-run": (lambda: vx.train(vx.Run(algorithm(), None, [], None, False, 0), steps=1), r"run\.resume\(steps="),
    "train-on_step": (
        lambda: vx.train(algorithm(), steps=1, on_step=3),
        "^on_step takes a function of the run.*; got 3",
    ),
    "train-loggers": (lambda: vx.train(algorithm(), steps=1, loggers=vx.loggers.csv()), "^loggers takes a tuple of"),
    "train-logger": (lambda: vx.train(algorithm(), steps=1, loggers=(3,)), r"^loggers\[0\] has no functions write and"),
    "train-logger-function": (
        lambda: vx.train(algorithm(), steps=1, loggers=(vx.loggers.csv,), progress=False),
        r"^loggers\[0\] \(csv\) gave no logger.* call it",
    ),
    "train-seed": (lambda: vx.train(algorithm(), steps=1, seed="0"), "^give an integer as the seed, .*; got '0'"),
    "step-one": (lambda: vx.train(stepping(3), steps=1, progress=False), r"step must return \(state, metrics\).*got 3"),
    "step-three": (lambda: vx.train(stepping((1, 2, {})), steps=1, progress=False), "; got 3 items"),
    "step-metrics": (lambda: vx.train(stepping((1, 2.0)), steps=1, progress=False), r"; got \(int, float\)"),
    "evolve-class": (lambda: vx.evolve(vx.GA, NET, ENV), f"^evolve takes a strategy, .*; got {CLASS}"),
    "evolve-swapped": (
        lambda: vx.evolve(GA, ENV, NET),
        r"^evolve\(strategy, network, env\) takes a network.*; got an env",
    ),
    "evolve-reversed": (lambda: vx.evolve(ENV, NET, GA), r"^evolve takes a strategy, .*; got an environment"),
    "evolve-settings": (lambda: vx.evolve(vx.A3C(), NET, ENV), r"settings of a learner \(A3C\): vx\.learn"),
    "evolve-torch": (
        lambda: vx.evolve(GA, Linear(), ENV),
        r"got a PyTorch module \(Linear\): networks are flax\.linen",
    ),
    "evolve-nnx": (
        lambda: vx.evolve(GA, nnx.Linear(1, 2, rngs=nnx.Rngs(0)), ENV),
        r"got a flax\.nnx module \(Linear\)",
    ),
    "evolve-network-class": (lambda: vx.evolve(GA, vx.networks.MLP, ENV), "got the class MLP itself: make one of it"),
    "evolve-network-function": (lambda: vx.evolve(GA, maker, ENV), "a flax.linen module, .* got the function maker"),
    "evolve-maker": (
        lambda: vx.evolve(GA, NET, vx.envs.cartpole),
        "takes an environment.*the function cartpole, and not",
    ),
    "evolve-gymnasium": (
        lambda: vx.evolve(GA, NET, GYM),
        r"got a Gymnasium environment \(CartPoleEnv\): environments are",
    ),
    "evolve-name": (lambda: vx.evolve(GA, NET, "Pong"), "takes an environment, such as .*; got 'Pong'$"),
    "evolve-group": (lambda: vx.evolve(GA, NET, ENV.make(0)[0]), "got a group of environments .*not the recipe"),
    "learn-strategy": (lambda: vx.learn(GA, NET, ENV), f"^learn takes a learner's settings, .*; got {STRATEGY}"),
    "learn-swapped": (
        lambda: vx.learn(vx.A3C(), ENV, NET),
        r"^learn\(settings, network, env\) takes a network.*; got an",
    ),
    "learn-reversed": (lambda: vx.learn(NET, vx.A3C(), ENV), r"^learn takes a learner's settings, .*; got a network"),
    "learn-maker": (
        lambda: vx.learn(vx.A3C(), NET, functools.partial(maker, a=1)),
        "takes an env.*got a partial of <func",
    ),
    "learn-spec": (lambda: vx.learn(vx.A3C(), NET, ENV.spec), "takes an environment.*; got the spec of an environment"),
    "functions-four": (four_items, r"step must return \(state, reward, terminated\), three items; it returned 4 items"),
    "functions-arguments": (
        lambda: four_items(step=lambda state, action: 0),
        r"^step takes a function of \(state, action, key\); <lambda>\(state, action\) is given: too many",
    ),
    "functions-reset": (lambda: four_items(reset=jnp.zeros(1)), r"^reset takes a function of \(key\); got "),
    "play-swapped": (
        lambda: vx.play(algorithm().policy, ENV, {}),
        r"^play\(env, policy, .*takes an env.*; got a policy",
    ),
    "play-algorithm": (
        lambda: vx.play(ENV, algorithm(), {}),
        r"^play\(env, policy, .*takes a policy.*; got an algorithm",
    ),
    "play-run": (
        lambda: vx.play(ENV, algorithm().policy, vx.Run(algorithm(), None, [], None, False, 0)),
        r"^play\(env, policy, .*such as run\.variables\(\).*; got a run",
    ),
    "play-nothing": (
        lambda: vx.play(ENV, algorithm().policy, None),
        r"^play\(env, policy, .*run\.variables.*; got None",
    ),
    "play-key": (
        lambda: vx.play(ENV, algorithm().policy, jax.random.key(0)),
        r"^play\(env, policy, .*such as run\.variables\(\).*; got a key of jax\.random",
    ),
    "play-old-key": (
        lambda: vx.play(ENV, algorithm().policy, jax.random.PRNGKey(0)),
        r"^play\(env, policy, .*such as run\.variables\(\).*; got ",
    ),
    "play-seed": (lambda: vx.play(ENV, algorithm().policy, 0), r"^play\(env, policy, .*run\.variables\(\).*; got 0$"),
    "play-method": (
        lambda: vx.play(ENV, algorithm().policy, stepping(0).variables),
        r"^play\(env, policy, .*; got the function .*, and not what it returns: call it",
    ),
    "evolve-gymnax": (
        lambda: vx.evolve(GA, NET, (GYMNAX, object())),
        r"takes an environment.*; got a tuple with a gymnax environment \(CartPole\): vx\.envs\.gymnax\(name",
    ),
    "learn-gymnax": (
        lambda: vx.learn(vx.A3C(), NET, GYMNAX),
        r"; got a gymnax environment \(CartPole\): vx\.envs\.gym",
    ),
    "play-tuple": (lambda: vx.play((ENV, 3), algorithm().policy, {}), "takes an env.*; got a tuple of Env, int$"),
    "mlp-spec": (
        lambda: vx.networks.MLP(ENV.spec),
        r"^num_outputs of MLP takes an integer, such as env\.spec\.num_outputs; got the spec of an environment$",
    ),
    "mlp-text": (lambda: vx.networks.MLP("2"), "^num_outputs of MLP takes an integer, .*; got '2'$"),
    "mlp-float": (lambda: vx.networks.MLP(2.0), r"^num_outputs of MLP takes an integer, .*; got 2\.0$"),
    "deep-ga-env": (lambda: vx.networks.DeepGA(ENV), "^num_actions of DeepGA takes an int.*; got an environment"),
    "gaussian-none": (
        lambda: vx.networks.GaussianMLP(None),
        "^num_components of GaussianMLP takes an int.*; got None$",
    ),
    "torso-name": (
        lambda: vx.networks.ActorCritic(4, "small"),
        r"^torso of ActorCritic takes a network, such as vx\.networks\.SmallTorso\(\); got 'small'$",
    ),
    "torso-class": (
        lambda: vx.networks.RecurrentActorCritic(4, vx.networks.NatureTorso),
        r"^torso of RecurrentActorCritic takes a network, .*; got the class NatureTorso itself: make one of it",
    ),
    "torso-first": (
        lambda: vx.networks.ActorCritic(vx.networks.SmallTorso(), 4),
        r"^num_outputs of ActorCritic takes an integer, .*; got a network \(SmallTorso\)$",
    ),
    "objective-name": (lambda: vx.GA(objective="novelty"), r"^objective takes vx\.Returns\(\), .*; got 'novelty'$"),
    "objective-class": (lambda: vx.ES(objective=vx.Novelty), r"^objective takes .*; got the class Novelty itself"),
    "behavior-name": (lambda: vx.Novelty(behavior="ram"), r"^behavior takes .*vx\.loop\.Last.*; got 'ram'$"),
    "evolve-behavior": (
        lambda: vx.evolve(GA, NET, ENV, behavior=vx.rollout.Last),
        "^behavior takes .*; got the class Last",
    ),
    "evolve-noise": (
        lambda: vx.evolve(GA, NET, ENV, noise="low-rank"),
        r"^noise takes .*LowRank\(\).*; got 'low-rank'$",
    ),
    "mlp-width": (lambda: vx.evolve(GA, vx.networks.MLP(2, 64), ENV), r": hidden=64: give .*, such as \(64, 64\)$"),
    "mlp-activation": (
        lambda: vx.evolve(GA, vx.networks.MLP(2, (4,), "relu"), ENV),
        r": activation='relu': give a funct",
    ),
    "learn-lambda": (
        lambda: vx.learn(vx.PPO(), lambda x: x, ENV),
        r"flax\.linen module, .*; got a function \(lambda\)\.",
    ),
    "td3-network": (lambda: vx.learn(vx.TD3(), NET, ENV), r"ActorAndCritic\(actor, critic\); got a network \(MLP\)"),
    "rate-text": (lambda: vx.TD3(learning_rate="3e-4"), r"^learning_rate='3e-4': give a finite number above 0"),
    "compare-path": (lambda: vx.compare("runs/a"), r"^compare takes the runs of each method, .*; got 'runs/a'$"),
    "load-number": (lambda: vx.load(3), "^run_dir takes a path, such as 'runs/frostbite'; got 3$"),
    "run_dir-number": (lambda: vx.train(algorithm(), steps=1, run_dir=3), "^run_dir takes a path, .*; got 3$"),
    "loggers-name": (lambda: vx.train(algorithm(), steps=1, loggers="csv"), "^loggers takes a tuple .*; got 'csv'$"),
    "check-strategy": (lambda: vx.testing.check_algorithm(GA), f"^check_algorithm takes an algorithm, .*{STRATEGY}"),
    "envpool-name": (
        lambda: vx.envs.envpool("PongNoFrameskip-v4", num_envs=2),
        "^task 'PongNoFrameskip-v4' is not one of envpool's; did you mean 'Pong-v5'",
    ),
    "gymnax-number": (lambda: vx.envs.mujoco(3, num_envs=2), "^task 3 is not a MuJoCo task"),
    "tune-algorithm": (lambda: vx.tune(algorithm(), {"a": [1]}), "^tune takes a function .*; got an algorithm"),
    "env-step": (two_items, r"^step must return \(state, reward, terminated\), three items; it returned 2 items"),
    "check-env": (lambda: vx.testing.check_environment(maker), "^check_environment takes an environment"),
    "no-game": (lambda: vx.envs.atari("ALE/Pinball-v5"), "game 'ALE/Pinball-v5' is not one of envpool's Atari games"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_answered_in_one_line(name):
    call, message = MISTAKES[name]
    with pytest.raises((TypeError, ValueError), match=message) as error:
        call()
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize(
    "given", [object(), types.SimpleNamespace(a=1), np.zeros(300), "a" * 500, b"", None, 1.5, jax.random.key(0), [[]]]
)
def test_anything_is_described_in_a_few_words(given):
    text = said(given)
    assert 0 < len(text) < 120
    assert "\n" not in text


@pytest.mark.parametrize(
    "name",
    ["Pong", "pong", "Pong-v5", "Pong-v4", "ALE/Pong-v5", "PongNoFrameskip-v4", "PongDeterministic-v4", "ALE/Pong"],
)
def test_the_game_of_an_id(name):
    assert _folded(name) == "pong"


def test_ids_of_other_libraries_name_the_game_only():
    one, other = (vx.envs.atari(name, num_envs=2, groups=1) for name in ("Pong", "PongNoFrameskip-v4"))
    assert one.spec == other.spec
    assert one.config["settings"] == other.config["settings"]
    assert vx.envs.mujoco("HalfCheetah-v4", num_envs=1).spec.name == "HalfCheetah-v4"
    assert _folded("up_n_down") == _folded("ALE/UpNDown-v5") == "upndown"


def test_an_int_is_a_key():
    for number in (3, np.int64(3), np.uint8(3)):
        assert typed_key(number) == jax.random.key(3)
        chosen = algorithm().init(number)
        jax.tree.map(np.testing.assert_array_equal, chosen.strategy, algorithm().init(jax.random.key(3)).strategy)
    init = algorithm().policy.init
    jax.tree.map(np.testing.assert_array_equal, init(3), init(jax.random.key(3)))
    learner = vx.learn(vx.A3C(segment_length=2), vx.networks.CategoricalMLP(2, (4,)), ENV)
    states = [learner.init(key).learning.params for key in (5, jax.random.key(5))]
    jax.tree.map(np.testing.assert_array_equal, *states)
    for wrong in (0.5, "0", None, jnp.zeros(2)):
        with pytest.raises(TypeError, match="give an integer as the seed"):
            typed_key(wrong)


def test_counts_may_be_written_as_floats():
    assert [count("n", value) for value in (None, 3, 1e6, np.float32(8), np.int64(5))] == [None, 3, 1_000_000, 8, 5]
    for wrong in (0, 1.5, -1e6, float("nan"), float("inf"), True, "3"):
        with pytest.raises(ValueError, match="n must be an integer of at least 1, got"):
            count("n", wrong)


def test_lists_for_tuples_and_numpy_scalars_for_numbers():
    """As nested or scalar values of settings, of networks and of environments."""
    env = probes.corridor(length=np.int64(3), num_envs=np.int32(4), groups=np.int8(2), max_episode_steps=np.int16(6))
    assert env.config == probes.corridor(length=3, num_envs=4, groups=2, max_episode_steps=6).config
    listed, tupled = vx.networks.CategoricalMLP(2, [4, 3]), vx.networks.CategoricalMLP(2, (4, 3))  # pyright: ignore
    plain = {"segment_length": 2, "learning_rate": 0.5, "updates_per_iteration": 2}
    numpy = {"segment_length": np.int64(2), "learning_rate": np.float32(0.5), "updates_per_iteration": np.int32(2)}
    algorithms = [vx.learn(vx.A3C(**numbers), net, env) for numbers, net in ((numpy, listed), (plain, tupled))]
    assert algorithms[0].config == algorithms[1].config
    settings = [vx.GA(population_size=np.int64(64)), dataclasses.replace(vx.GA(), population_size=64)]
    assert vx.describe(settings[0]) == vx.describe(settings[1])
    shaped = vx.envs.from_functions(
        lambda key: jnp.zeros(2), lambda s, a, k: (s, 0.0, False), lambda s: s, name="x", num_envs=1,
        max_episode_steps=2, action_shape=[2], action_low=[-1.0, -2.0], action_high=np.float64(1),
    )  # fmt: skip
    assert shaped.spec.action_shape == (2,)


def test_what_is_true():
    assert all(map(is_true, (True, np.True_, jnp.bool_(True))))
    assert not any(map(is_true, (False, None, 1, np.False_, jnp.float32(1), "yes", (1,), np.ones(2), ENV)))
    assert state_and_metrics((1, {"a": 2})) == (1, {"a": 2})


def test_networks_of_our_own_are_networks():
    class Own(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(2)(x)

    assert "Own" in str(vx.evolve(GA, Own(), ENV, noise=TABLE).config["network"])
