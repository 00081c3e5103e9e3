"""`check_algorithm` passes what keeps its promises, and says of anything else what to mend."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import probes
import pytest
from cross_entropy import CrossEntropy
from q_learning import QLearning

import volvox as vx
from volvox.testing import check_algorithm
from volvox.types import Interrupted

POLICY = vx.Policy(
    init=lambda key: jnp.zeros(1),
    initial_state=lambda batch_size: (),
    apply=lambda variables, observation, state: (observation * variables[0], state),
    sample=lambda key, output: jnp.zeros(len(output), jnp.int32),
    mode=lambda output: jnp.zeros(len(output), jnp.int32),
    config={},
)


def step(state, *, monitor=None):
    if monitor is not None and monitor({"phase": "training"}):
        raise Interrupted
    number = state["step"] + 1
    x = state["x"] + np.random.default_rng([int(state["seed"]), number]).normal(size=2)
    return state | {"step": number, "x": x}, {"generation": number, "best": float(x.max()), "none": None, "name": "a"}


def algorithm(env, **changes):
    """Walks at random."""
    parts = {
        "init": lambda key: {"seed": np.asarray(jax.random.key_data(key)).sum(), "step": 0, "x": np.zeros(2)},
        "step": step,
        "variables": lambda state: jnp.asarray(state["x"], jnp.float32),
        "policy": POLICY,
        "env": env,
        "config": {"algorithm": "walk"},
        "close": lambda: None,
        "genome": lambda state: state["x"].tolist(),
        "from_genome": lambda genome: jnp.asarray(genome, jnp.float32),
        "restore": lambda saved: saved,
        "log": lambda state: {"x": state["x"]},
    }
    return vx.Algorithm(**(parts | changes))


def gives(**metrics):
    return {"step": lambda state, *, monitor=None: (step(state)[0], metrics)}


def in_place(state, *, monitor=None):
    state["x"] += 1
    return step(state)


def donating(state, *, monitor=None):
    new, metrics = step(state)
    state["y"].delete()
    return new | {"y": jnp.zeros(2)}, metrics


def deaf(state, *, monitor=None):
    return step(state)


def unclean(state, *, monitor=None):
    if monitor({"phase": "training"}):
        state["x"] += 1
        raise Interrupted
    return step(state)


hidden = iter(range(100))
BREACHES = {
    "config": ({"config": {"a": np.float32(1)}}, "config must hold JSON values only"),
    "init": (
        {"init": lambda key: {"step": 0, "x": np.full(2, next(hidden)), "seed": 0}},
        "same state for the same key",
    ),
    "in-place": ({"step": in_place}, r"step must leave the state that it is given as it is\. They differ at \['x'\]"),
    "donated": (
        {"init": lambda key: {"seed": 0, "step": 0, "x": np.zeros(2), "y": jnp.zeros(2)}, "step": donating},
        "step must leave the state that it is given, and not donate it",
    ),
    "array": (gives(best=np.zeros(2)), "the metric 'best' must be a scalar, for plots and loggers; it is"),
    "object": (gives(best=object()), "metrics must be numbers by name: "),
    "count": (gives(generation=7), "the metric 'generation' must count steps: 1, and not 7"),
    "random": (
        {"step": lambda state, *, monitor=None: (step(state)[0] | {"x": np.full(2, next(hidden))}, {})},
        "step must give the same state from the same state",
    ),
    "leaf": ({"save": lambda state: {"x": object()}}, "a checkpoint must hold what `save` gives"),
    "restore": (
        {"restore": lambda saved: saved | {"x": np.zeros(2)}},
        r"must be saved as the same\. They differ at \['x'",
    ),
    "forgets": (
        {
            "save": lambda state: {name: state[name] for name in ("x", "step")},
            "restore": lambda saved: saved | {"seed": 99},
        },
        r"a restored state must go on bit by bit: `save` must give all that `step` needs\. They differ at \['x'\]",
    ),
    "shape": ({"policy": POLICY._replace(mode=lambda output: output)}, r"policy\.mode must give actions \[2\]"),
    "bounds": (
        {"policy": POLICY._replace(mode=lambda out: jnp.full(len(out), 5))},
        "actions within the bounds; it gives",
    ),
    "genome": ({"from_genome": lambda genome: jnp.zeros(2)}, "must give the variables of the same individual"),
    "genome-json": ({"genome": lambda state: state["x"]}, "genome must give JSON values, which elite.json holds"),
    "deaf": ({"step": deaf}, "step must call its monitor, once at least"),
    "unclean": (
        {"step": unclean},
        r"a step that was interrupted must leave the state as it was\. They differ at \['x'",
    ),
    "log": ({"log": lambda state: {"x": 3}}, "log must give NumPy arrays by name; 'x' is of int"),
}


BEGUN = jax.jit(lambda: jnp.float32(np.random.normal()))  # noqa: NPY002
KEYS = {
    "ignored": (
        lambda key: {"seed": 3, "step": 0, "x": np.zeros(2)},
        r"another state for another key.*check it with draws=False",
    ),
    "kept": (
        lambda key: {"key": key, "seed": 3, "step": 0, "x": np.zeros(2)},
        r"another state for another key.*check it with draws=False",
    ),
    "constant": (
        lambda key: {"key": key, "seed": 3, "step": 0, "x": np.full(2, BEGUN())},
        r"when it is traced again: draw from the key.*NumPy's .* They differ at \['x'",
    ),
}


@pytest.mark.parametrize("name", KEYS)
def test_init_draws_from_its_key(walks, name):
    init, message = KEYS[name]
    with pytest.raises(AssertionError, match=message):
        check_algorithm(algorithm(walks, init=init), exact=True)


def test_init_may_draw_nothing_if_that_is_said(walks):
    check_algorithm(algorithm(walks, init=KEYS["ignored"][0]), exact=True, draws=False)
    with pytest.raises(AssertionError, match="traced again"):
        check_algorithm(algorithm(walks, init=KEYS["constant"][0]), exact=True, draws=False)


@pytest.mark.parametrize(
    ("drawn", "message"),
    [
        (lambda policy, key: policy.init(jax.random.key(0)), "another state for another key"),
        (lambda policy, key: jax.tree.map(lambda x: x + np.random.normal(), policy.init(key)), "traced again"),  # noqa: NPY002
    ],
    ids=["ignored", "constant"],
)
def test_the_init_of_a_learner_draws_from_its_key(drawn, message):
    @dataclasses.dataclass(frozen=True)
    class Settings(QLearning):
        def bind(self, network, env):
            learner = super().bind(network, env)
            given = learner.functions.init
            init = lambda key: given(key).replace(params=drawn(learner.policy, key))  # noqa: E731
            return dataclasses.replace(learner, functions=learner.functions._replace(init=init))

    with pytest.raises(AssertionError, match=message):
        check_algorithm(vx.learn(Settings(), vx.networks.MLP(2, (4,)), WALK))


def test_an_algorithm_that_keeps_its_promises(walks):
    closed = []
    check_algorithm(algorithm(walks, close=lambda: closed.append(1)), exact=True)
    assert closed == [1]


@pytest.mark.parametrize("name", BREACHES)
def test_a_breach_is_said(walks, name):
    changes, message = BREACHES[name]
    closed = []
    with pytest.raises(AssertionError, match=message):
        check_algorithm(algorithm(walks, **changes, close=lambda: closed.append(1)), exact=True)
    assert closed == [1]


def test_a_step_that_returns_something_else(walks):
    with pytest.raises(TypeError, match=r"must return \(state, metrics\)"):
        check_algorithm(algorithm(walks, step=lambda state, *, monitor=None: state))


LINE = probes.target(size=1, num_envs=4, groups=2)
WALK = probes.corridor(length=4, num_envs=4, groups=2)
TABLE = vx.population.Table(size=20_000)


def evolved(strategy):
    return vx.evolve(strategy, vx.networks.MLP(1, hidden=()), LINE, noise=TABLE)


def learned(settings, network, env):
    return vx.learn(settings, network, env, evaluate_every=16, num_evaluation_episodes=2)


def critics():
    return vx.networks.ActorAndCritic(vx.networks.MLP(1, hidden=(4,)), vx.networks.QNetwork(hidden=(4,)))


OURS = {
    "ga": lambda: evolved(
        vx.GA(population_size=8, num_parents=2, mutation_std=0.1, num_elite_candidates=2, num_validation_episodes=2)
    ),
    "es": lambda: evolved(vx.ES(population_size=8, num_validation_episodes=2)),
    "a3c": lambda: learned(
        vx.A3C(segment_length=3, learning_rate=0.01, optimizer=optax.adam, updates_per_iteration=3),
        vx.networks.CategoricalMLP(2, (4,)),
        WALK,
    ),
    "td3": lambda: learned(
        vx.TD3(batch_size=8, random_timesteps=16, replay_size=64, timesteps_per_iteration=24), critics(), LINE
    ),
    "ask-tell": lambda: evolved(
        vx.evolution.from_ask_tell(CrossEntropy(population_size=8, num_best=2), num_validation_episodes=2)
    ),
    "from-functions": lambda: learned(QLearning(), vx.networks.MLP(2, (4,)), WALK),
    "ppo": lambda: learned(
        vx.PPO(segment_length=4, learning_rate=0.01, num_minibatches=2, rounds_per_iteration=2),
        vx.networks.CategoricalMLP(2, (4,)),
        WALK,
    ),
    "primal-dual": lambda: learned(
        vx.learners.PrimalDual(timesteps_per_iteration=16), vx.networks.CategoricalMLP(2, (4,)), WALK
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OURS)
def test_our_algorithms_keep_their_promises(name):
    check_algorithm(OURS[name]())
