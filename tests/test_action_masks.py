"""Action masks: no policy takes an action that its environment does not allow."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import volvox as vx
from volvox.data import normalization
from volvox.networks.distributions import Categorical, MultiCategorical, mask_logits

networks = vx.networks


def begins(counts):
    """Index of the first choice of each component."""
    return np.cumsum((0, *counts[:-1]))


def draw_mask(key, counts):
    """bool `[sum(counts)]`: random choices and at least one of each component."""
    parts = jnp.split(jax.random.uniform(key, (sum(counts),)), begins(counts)[1:])
    return jnp.concatenate([(part > 0.7) | (part == part.max()) for part in parts])


def draw_masks(number, counts):
    return np.asarray(jax.vmap(lambda key: draw_mask(key, counts))(jax.random.split(jax.random.key(7), number)))


def are_allowed(mask, action, counts):
    """Whether actions `[B, ...]` are allowed by masks `[B, n]`."""
    return np.take_along_axis(mask, action.reshape(len(action), -1) + begins(counts), axis=1).all(axis=1)


def observe(mask):
    """Observations `[..., 1]` with a mask `[..., n]`."""
    return {"observation": mask.sum(axis=-1, keepdims=True).astype(np.float32), "action_mask": mask}


def observe_more(mask):
    """Two observations with a mask `[..., 2, n / 2]`."""
    rows = mask.reshape(*mask.shape[:-1], 2, -1)
    return {"rows": rows.sum(axis=-1).astype(np.float32), "all": mask.sum(axis=-1), "action_mask": rows}


def masked(counts, observe=observe, **options):
    """Each timestep allows other actions. An action that is not allowed is rewarded -1, all others 0."""

    def step(mask, action, key):
        return draw_mask(key, counts), jnp.where(mask[jnp.ravel(action) + begins(counts)].all(), 0.0, -1.0), False

    kind = {"num_actions": counts[0]} if len(counts) == 1 else {"num_choices": counts}
    return vx.envs.from_functions(
        lambda key: draw_mask(key, counts),
        step,
        observe,
        name="masked",
        max_episode_steps=5,
        **{"num_envs": 4, **kind, **options},
    )


@pytest.mark.parametrize("actions", [Categorical(5), MultiCategorical((2, 3))])
def test_probabilities_are_renormalised_over_the_allowed_actions(actions):
    counts = getattr(actions, "num_choices", (5,))
    mask = draw_masks(64, counts)
    logits = np.random.default_rng(0).normal(scale=20.0, size=mask.shape).astype(np.float32)
    key, output = jax.random.key(0), mask_logits(jnp.asarray(logits), jnp.asarray(mask))
    drawn = np.asarray(jax.jit(jax.vmap(actions.sample, (0, None)))(jax.random.split(key, 100), output))
    assert all(are_allowed(mask, action, counts).all() for action in (*drawn, np.asarray(actions.mode(output))))

    log_prob, entropy = np.zeros(64), np.zeros(64)
    for i, begin in enumerate(begins(counts)):
        part = slice(begin, begin + counts[i])
        p = np.exp(logits[:, part].astype(np.float64)) * mask[:, part]
        p /= p.sum(axis=1, keepdims=True)
        chosen = drawn[0].reshape(64, -1)[:, i]
        log_prob += np.log(p[np.arange(64), chosen])
        entropy -= np.where(p > 0, p * np.log(np.where(p > 0, p, 1)), 0).sum(axis=1)
    np.testing.assert_allclose(jax.jit(actions.log_prob)(output, drawn[0]), log_prob, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(jax.jit(actions.entropy)(output), entropy, rtol=1e-4, atol=1e-5)

    @jax.jit
    @jax.grad
    def gradient(logits):
        output = mask_logits(logits, mask)
        return actions.log_prob(output, drawn[0]).sum() + actions.entropy(output, 1e-6).sum()

    found = np.asarray(gradient(jnp.asarray(logits)))
    assert np.isfinite(found).all()
    assert (found[~mask] == 0).all()
    assert (found[mask] != 0).any()


@pytest.mark.parametrize("actions", [Categorical(5), MultiCategorical((2, 3))])
def test_a_mask_that_allows_nothing_gives_the_first_action_and_finite_numbers(actions):
    output = mask_logits(jnp.arange(10.0).reshape(2, 5), jnp.zeros((2, 5), jnp.int8))
    action = actions.sample(jax.random.key(0), output)
    assert (action == 0).all()
    uniform = np.log(np.prod(getattr(actions, "num_choices", 5)))
    np.testing.assert_allclose(actions.log_prob(output, action), -uniform, rtol=1e-6)
    np.testing.assert_allclose(actions.entropy(output), uniform, rtol=1e-6)


ROUNDS = {"segment_length": 8, "num_epochs": 4, "num_minibatches": 2, "lag": 1, "rounds_per_iteration": 4}
ALGORITHMS = {
    "a3c_several_arrays": (
        (3, 3),
        vx.A3C(segment_length=5, updates_per_iteration=20, log_epsilon=1e-6, lag=0, vtrace=False),
        networks.CategoricalMLP(6, (8,)),
    ),
    "ppo_recurrent": (
        (4,),
        vx.PPO(**ROUNDS, normalize_observations=True),
        networks.RecurrentActorCritic(4, networks.MLP(8, (8,)), width=4),
    ),
    "es": ((2, 3), vx.ES(population_size=8), networks.MLP(5, (8,))),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_only_allowed_actions_are_taken(name, tmp_path):
    """In training, evaluation, and by actors and exported policies."""
    counts, settings, network = ALGORITHMS[name]
    show, is_learner = observe_more if name == "a3c_several_arrays" else observe, hasattr(settings, "bind")
    env = masked(counts, show, groups=2)
    algorithm = vx.learn(settings, network, env) if is_learner else vx.evolve(settings, network, env)
    run = vx.train(algorithm, seed=0, steps=2, run_dir=tmp_path / "run", progress=False)
    if is_learner:
        assert [row["training_mean"] for row in run.metrics] == [0, 0]
        assert (run.evaluate(num_episodes=8, sampled=True).returns == 0).all()
    assert (run.evaluate(num_episodes=8).returns == 0).all()

    algorithm.close()
    mask = draw_masks(32, counts)
    seen = show(mask)
    wanted = run.actor()(seen)
    assert are_allowed(mask, wanted, counts).all()
    for suffix in (".stablehlo", ".onnx"):
        exported = vx.load(run.export(tmp_path / f"policy{suffix}"))
        np.testing.assert_array_equal(exported(seen), wanted)
        exported.reset()
        assert exported(jax.tree.map(lambda x: x[0], seen)).shape == wanted.shape[1:]


@pytest.mark.slow
def test_random_actions_are_allowed():
    env = masked((2, 3), lambda mask: {"observation": jnp.zeros((8, 8, 1), jnp.uint8), "action_mask": mask})
    vx.testing.check_env(env)
    assert (vx.play_randomly(env, num_episodes=8).returns == 0).all()
    reference = vx.reference_batch(env, size=4)
    assert sorted(reference) == ["action_mask", "observation"]
    genotype = networks.genotype(networks.VirtualBatchNormNet(5), env.spec, reference=reference)
    variables = genotype.prepare(genotype.policy.init(jax.random.key(0)))
    output, _ = genotype.policy.apply(variables, reference, ())
    assert are_allowed(reference["action_mask"], np.asarray(genotype.policy.mode(output)), (2, 3)).all()


def test_normalisation_leaves_the_mask_alone():
    mask = jnp.asarray(draw_masks(16, (4,)), jnp.float32)
    observation = {"observation": 3 + jnp.arange(32.0).reshape(16, 2), "action_mask": mask}

    @jax.jit
    def normalize(observation):
        moments = normalization.init(jax.tree.map(lambda x: x[0], observation))
        return normalization.normalize(normalization.update(moments, observation), observation)

    normalized = normalize(observation)
    np.testing.assert_array_equal(normalized["action_mask"], mask)
    np.testing.assert_allclose(normalized["observation"].mean(axis=0), 0, atol=1e-5)


def strict(space, ended=lambda count: False, change=lambda count, mask: mask):
    """A class of environments that allow random actions, and raise if they get another one.

    `ended` and `change` are functions of the number of timesteps, and of the mask that is reported.
    """

    class Strict(gymnasium.Env):
        observation_space = spaces.Box(-1.0, 1.0, (2,))
        action_space = space

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.count = 0
            return self.answer()

        def step(self, action):
            indices = np.ravel(action - space.start)
            if not all(part[i] for part, i in zip(self.parts, indices, strict=True)):
                raise RuntimeError(f"{action} is not allowed")
            self.count += 1
            observation, info = self.answer()
            return observation, 0.0, ended(self.count), False, info

        def answer(self):
            counts = np.ravel(getattr(space, "nvec", getattr(space, "n", None)))
            self.parts = tuple((self.np_random.permutation(count) < 1).astype(np.int8) for count in counts)
            mask = self.parts if isinstance(space, spaces.MultiDiscrete) else self.parts[0]
            return self.np_random.uniform(-1, 1, 2).astype(np.float32), change(self.count, {"action_mask": mask})

    return Strict


@pytest.mark.parametrize(
    ("space", "workers"),
    [
        (spaces.Discrete(4, start=-1), 0),
        pytest.param(spaces.MultiDiscrete([[2], [3]], start=[[1], [0]]), 2, marks=pytest.mark.slow),
    ],
)
def test_masks_of_gymnasium_environments(space, workers):
    make_env = strict(space)
    env = vx.envs.gymnasium(make_env, num_envs=4, workers=workers, max_episode_steps=10, action_mask=True)
    network = networks.CategoricalMLP(env.spec.num_outputs, (8,))
    run = vx.train(vx.learn(vx.A3C(updates_per_iteration=4), network, env), seed=0, steps=1, progress=False)
    run.evaluate(num_episodes=4)
    run.algorithm.close()
    act, one = run.actor(), make_env()
    observation, _ = one.reset(seed=0)
    for _ in range(20):
        mask = np.concatenate(one.parts)
        observation, *_ = one.step(act({"observation": observation, "action_mask": mask}))
    assert one.count == 20  # it raises at an action that is not allowed


def test_a_mask_may_be_empty_only_where_an_episode_ends():
    def emptied(count, info):
        return {"action_mask": info["action_mask"] * (count < 3)}

    def play(make_env):
        env = vx.envs.gymnasium(make_env, num_envs=2, max_episode_steps=10, action_mask=True)
        return vx.play_randomly(env, num_episodes=2).lengths.tolist()

    space = spaces.Discrete(4)
    assert play(strict(space, ended=lambda count: count == 3, change=emptied)) == [3, 3]
    with pytest.raises(ValueError, match="allows no action"):
        play(strict(space, change=emptied))
    for wrong in ({}, {"action_mask": np.ones(3, np.int8)}):
        with pytest.raises(ValueError, match="action_mask"):
            play(strict(space, change=lambda count, info, wrong=wrong: wrong))


def test_masks_of_the_wrong_size_and_of_continuous_actions_are_refused():
    with pytest.raises(ValueError, match="action_mask"):
        masked((4,), num_actions=3)
    with pytest.raises(ValueError, match="action_mask"):
        vx.envs.gymnasium("Pendulum-v1", num_envs=1, action_mask=True)
