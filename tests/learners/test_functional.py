"""Learners made of functions: what each function sees and when it is called, and what does not fit."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

import volvox as vx
from volvox.learners import from_functions

B, GROUPS, BEATS = 2, 2, 3
ENV = probes.countdown(low=2, high=5, num_envs=B * GROUPS, groups=GROUPS)
POLICY = vx.networks.genotype(vx.networks.MLP(2, ()), ENV.spec).policy


def init(key):
    return {"params": POLICY.init(key), "worked": jnp.int32(0), "finished": jnp.int32(0), "rewards": jnp.float32(0)}


def act(seen, learned, key, timestep):
    action = jax.random.randint(key, timestep.first.shape, 0, 2)
    return vx.data.transitions.add(seen, timestep, action), action


def work(seen, learned, key):
    rewards = jnp.where(seen.valid, seen.reward, 0.0).sum()
    changed = learned | {"worked": learned["worked"] + 1, "rewards": learned["rewards"] + rewards}
    return changed, {"reward": rewards, "drawn": jax.random.uniform(key)}


def finish(seen, learned, key):
    assert len(seen) == GROUPS
    figures = {"valid": sum(one.valid.sum() for one in seen), "round": learned["finished"]}
    return learned | {"finished": learned["finished"] + 1}, figures


def made(**parts):
    given = {"init": init, "act": act, "work": work, "finish": finish, "variables": lambda learned: learned["params"]}
    return from_functions(POLICY, ENV, **({"beats_per_round": BEATS, "timesteps_per_iteration": 40} | given | parts))


@dataclasses.dataclass(frozen=True)
class Settings:
    def bind(self, network, env):
        return made()


@pytest.mark.parametrize("host", [False, True], ids=["compiled", "from Python"])
def test_each_function_is_called_in_its_turn(host):
    algorithm = vx.learn(Settings(), None, ENV, host=host)
    state, row = algorithm.step(algorithm.init(0))
    algorithm.close()
    learned = jax.device_get(state.learning.learned)
    rounds = int(learned["finished"])
    # In the first beat every timestep begins an episode, so that there is nothing to learn from for either group.
    assert learned["worked"] == GROUPS * (rounds * BEATS - 1)
    assert row["update"] == learned["worked"] + rounds
    assert row["timesteps"] == state.timesteps >= 40
    # Each timestep is rewarded 1, and none is learned from twice or left out.
    assert learned["rewards"] == state.timesteps
    assert row["reward"] == pytest.approx(state.timesteps / learned["worked"])
    assert 0 < row["drawn"] < 1
    assert 0 < row["valid"] <= B * GROUPS
    assert row["round"] == pytest.approx(np.mean(np.arange(rounds)))
    assert row["training_mean"] == pytest.approx(row["episode_length"])
    assert 2 <= row["training_mean"] <= 5
    assert ENV.spec.num_outputs == 2


def stub():
    """(acting, learning, a timestep) of a learner before its first beat."""
    (group, *_) = ENV.make(0, host=True)
    learner = made()
    acting, learning = learner.init(jax.random.key(0))
    return learner.begin(acting, (group,) * GROUPS), learning, group.recv(group.init())[1]


def test_keys_differ_from_call_to_call():
    acting, learning, timestep = stub()
    learner, key = (
        made(act=lambda seen, learned, key, timestep: (seen, jax.random.randint(key, (B,), 0, 10**6))),
        jax.random.key(0),
    )
    actions = []
    for g in (0, 1, 0):
        acting, action = learner.act(acting, learning, key, g, timestep)
        actions += action.tolist()
    assert len(set(actions)) == 3 * B


ACTS = {
    "shape": (
        lambda seen, learned, key, step: (seen, jnp.zeros(3, jnp.int32)),
        r"actions int32 \[2\].*returned int32 \[3",
    ),
    "kind": (lambda seen, learned, key, step: (seen, jnp.zeros(B)), r"actions int32 \[2\].*returned float32 \[2\]"),
    "items": (
        lambda seen, learned, key, step: step,
        r"act must return \(collected, action\), two items; it returned TimeStep",
    ),
    "kept": (
        lambda seen, learned, key, step: (seen._replace(reward=step.first), jnp.zeros(B, jnp.int32)),
        r"act: what is collected must keep its structure.*\.reward was float32 \[2\], and became bool \[2\]",
    ),
    "lost": (
        lambda seen, learned, key, step: ((), jnp.zeros(B, jnp.int32)),
        r"was float32 \[2, 1\], and became nothing",
    ),
}
WORKS = {
    "items": (
        lambda seen, learned, key: learned,
        r"work must return \(learned, metrics\), two items; it returned dict",
    ),
    "names": (lambda seen, learned, key: (learned, {"frames": jnp.zeros(())}), "metrics cannot be named frames"),
    "metrics": (lambda seen, learned, key: (learned, {"a": jnp.zeros(2)}), "metrics must be a dict of scalars by name"),
    "kept": (
        lambda seen, learned, key: (learned | {"worked": learned["worked"] * 0.5}, {}),
        r"work: what is learned must keep .*\['worked'\] was int32 \[\], and became float32 \[\]",
    ),
}


@pytest.mark.parametrize("name", ACTS)
def test_what_act_returns_must_fit(name):
    broken, message = ACTS[name]
    acting, learning, timestep = stub()
    with pytest.raises(ValueError, match=message):
        made(act=broken).act(acting, learning, jax.random.key(0), 0, timestep)


@pytest.mark.parametrize("name", WORKS)
def test_what_work_returns_must_fit(name):
    broken, message = WORKS[name]
    acting, learning, _ = stub()
    with pytest.raises(ValueError, match=message):
        made(work=broken).work(acting, learning, jax.random.key(0), 0)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"act": lambda seen, learned, timestep: 0}, r"act takes a function of \(collected, learned, key, timestep\)"),
        ({"work": lambda seen: 0}, r"work takes a function of \(collected, learned, key\); <lambda>\(seen\) is given"),
        ({"finish": 3}, r"finish takes a function of .*; got 3"),
        ({"collect": lambda: 0}, r"collect takes a function of \(num_envs\)"),
    ],
)
def test_wrong_arguments_are_told(parts, message):
    with pytest.raises(TypeError, match=message):
        made(**parts)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            lambda learned: learned.params,
            r"variables\(learned\) fails .*AttributeError.*Give variables=; learned is .* dict",
        ),
        (lambda learned: learned["rewards"], r"must give what policy\.apply takes.*gives float32 \[\]"),
    ],
)
def test_variables_of_a_wrong_structure_are_told(variables, message):
    with pytest.raises(ValueError, match=message) as error:
        made(variables=variables).init(jax.random.key(0))
    assert "\n" not in str(error.value)


def test_numbers_and_functions_that_are_missing():
    with pytest.raises(ValueError, match="give work, finish or both"):
        made(work=None, finish=None)
    with pytest.raises(ValueError, match="beats_per_round must be an integer of at least 1, got 0"):
        made(beats_per_round=0)
    with pytest.raises(ValueError, match="timesteps_per_iteration must be"):
        made(timesteps_per_iteration=0)


def test_transitions_line_up():
    """Observation, action, reward and end of one action stand in one transition, from timesteps that tell them."""
    spec = ENV.spec._replace(observation_dtype=np.dtype(np.int32))
    latest = vx.data.transitions.init(spec, 2)
    assert not latest.valid.any()
    assert (latest.observation.dtype, latest.action.dtype) == (np.int32, np.int32)
    found = []
    for t in range(4):
        flags = [np.array(x) for x in ([t in (0, 3)] * 2, [t == 2, False], [False, t == 2])]
        step = vx.TimeStep(np.full((2, 1), t), np.float32([10 * t, 10 * t]), *flags, {})
        latest = vx.data.transitions.add(latest, step, np.full(2, 100 + t))
        found.append((latest.observation[0, 0], latest.action[0], latest.reward[0], latest.next_observation[0, 0]))
        assert latest.valid.tolist() == [t not in (0, 3)] * 2
        assert (latest.terminated.tolist(), latest.truncated.tolist()) == ([t == 2, False], [False, t == 2])
        assert latest.next_action.tolist() == [100 + t] * 2
    assert [tuple(map(int, one)) for one in found[1:]] == [(0, 100, 10, 1), (1, 101, 20, 2), (2, 102, 30, 3)]
