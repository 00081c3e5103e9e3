"""The loss against its formula in NumPy, its gradient against the formula's derivative, and updates by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from volvox.actor_critic.learner import LossSettings, learner, loss

from volvox.data.segments import Segment
from volvox.networks.actor_critic import ActorCriticNetwork
from volvox.networks.distributions import categorical

T, B, A, K = 5, 3, 4, 2
LINEAR = ActorCriticNetwork(
    init=lambda key: {"policy": jax.random.normal(key, (K, A)), "value": jnp.ones(K)},
    initial_state=lambda batch_size: (),
    apply=lambda params, x, state: (x @ params["policy"], x @ params["value"], state),
    recurrent=False,
    config={},
)
SETTINGS = LossSettings(0.9, 1.0, False, 1.0, 1.0, 0.0, 0.5)


def segment(seed=0):
    """Environment 0 terminates at step 1 and shows its dummy at 2; environment 1 is cut there; 2 goes on."""
    rng = np.random.default_rng(seed)
    flags = np.zeros((3, T, B), bool)
    terminated, truncated, dummy = flags
    terminated[1, 0] = truncated[1, 1] = True
    dummy[2, :2] = True
    return Segment(
        observation=rng.standard_normal((T, B, K)).astype(np.float32),
        first=np.roll(dummy, 1, axis=0),
        action=rng.integers(0, A, (T, B)).astype(np.int32),
        log_prob=np.log(rng.uniform(0.1, 0.9, (T, B))).astype(np.float32),
        reward=rng.standard_normal((T, B)).astype(np.float32),
        terminated=terminated,
        truncated=truncated,
        valid=~dummy,
        version=np.full(T, 3, np.int32),
        bootstrap=rng.standard_normal(B).astype(np.float32),
        recurrent=(),
    )


def forward(params, s):
    policy, value = (np.asarray(params[name], np.float64) for name in ("policy", "value"))
    logits, v = s.observation @ policy, s.observation @ value
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    return p, v


def targets(s, v, discount=0.9):
    """n-step returns, written out step by step."""
    g = np.zeros((T, B))
    for b in range(B):
        following = float(s.bootstrap[b])
        for t in reversed(range(T)):
            after = v[t + 1, b] if t + 1 < T else float(s.bootstrap[b])
            if s.terminated[t, b]:
                following = 0.0
            elif s.truncated[t, b]:
                following = after
            g[t, b] = following = s.reward[t, b] + discount * following
    return g


def expected(params, s, entropy_coefficient, log_epsilon=0.0, value_coefficient=0.5):
    p, v = forward(params, s)
    g = targets(s, v)
    chosen = np.take_along_axis(p, s.action[..., None], -1)[..., 0]
    policy = -(np.log(chosen + log_epsilon) * (g - v))[s.valid].sum()
    entropy = -(p * np.log(p + log_epsilon)).sum(-1)[s.valid].sum()
    value = 0.5 * ((g - v) ** 2)[s.valid].sum()
    return policy - entropy_coefficient * entropy + value_coefficient * value, policy, entropy, value


@pytest.mark.parametrize("log_epsilon", [0.0, 1e-2])
def test_the_loss_is_its_formula(log_epsilon):
    params, s = LINEAR.init(jax.random.key(0)), segment()
    total, sums = loss(
        params,
        s,
        jnp.float32(0.3),
        jnp.int32(5),
        network=LINEAR,
        actions=categorical(A),
        settings=SETTINGS._replace(log_epsilon=log_epsilon),
    )
    want = expected(params, s, 0.3, log_epsilon)
    np.testing.assert_allclose([total, sums.policy_loss, sums.entropy, sums.value_loss], want, rtol=1e-4)
    assert sums.transitions == T * B - 2
    assert sums.lag == 2 * (T * B - 2)
    assert sums.lag_max == 2


def test_the_gradient_takes_returns_and_advantages_as_constants():
    params, s = LINEAR.init(jax.random.key(0)), segment()
    arguments = {"network": LINEAR, "actions": categorical(A), "settings": SETTINGS}
    got = jax.grad(lambda p: loss(p, s, jnp.float32(0.0), jnp.int32(5), **arguments)[0])(params)
    p, v = forward(params, s)
    advantage = np.where(s.valid, targets(s, v) - v, 0.0)
    to_logits = -advantage[..., None] * (np.eye(A)[s.action] - p)
    np.testing.assert_allclose(got["policy"], np.einsum("tbk,tba->ka", s.observation, to_logits), rtol=1e-4)
    np.testing.assert_allclose(got["value"], np.einsum("tbk,tb->k", s.observation, -0.5 * advantage), rtol=1e-4)


def test_what_a_dummy_step_holds_changes_nothing():
    params, s = LINEAR.init(jax.random.key(0)), segment()
    arguments = {"network": LINEAR, "actions": categorical(A), "settings": SETTINGS}
    of = lambda s: jax.grad(lambda p: loss(p, s, jnp.float32(0.1), jnp.int32(5), **arguments)[0])(params)  # noqa: E731
    dummy = ~s.valid
    other = s._replace(
        reward=np.where(dummy, 1e3, s.reward), action=np.where(dummy, 0, s.action), log_prob=np.where(dummy, -9, 0)
    )
    jax.tree.map(np.testing.assert_array_equal, of(s), of(other))


def test_vtrace_weighs_by_what_the_actor_thought():
    """With the learner's own probabilities it is the plain loss; with others it is not."""
    params, s = LINEAR.init(jax.random.key(0)), segment()
    p, _ = forward(params, s)
    own = np.log(np.take_along_axis(p, s.action[..., None], -1)[..., 0]).astype(np.float32)

    def of(s, correct):
        settings = SETTINGS._replace(correct=correct)
        return loss(
            params, s, jnp.float32(0.1), jnp.int32(5), network=LINEAR, actions=categorical(A), settings=settings
        )

    plain, corrected = of(s, False)[0], of(s._replace(log_prob=own), True)[0]
    np.testing.assert_allclose(plain, corrected, rtol=1e-4)
    assert abs(float(of(s._replace(log_prob=own + 1), True)[0] - plain)) > 1e-2


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_an_update_is_by_the_sum_or_the_mean_of_micro_batches(reduction):
    s = segment()
    learn = learner(
        LINEAR,
        categorical(A),
        settings=SETTINGS,
        entropy_coefficient=lambda update: jnp.float32(0.01) * (update + 1),
        optimizer=optax.sgd(0.1),
        loss_reduction=reduction,
    )
    before = learn.init(jax.random.key(0))
    state = before
    for part in (slice(0, 1), slice(1, 3)):
        piece = jax.tree.map(lambda x, part=part: x[:, part], s._replace(version=(), bootstrap=()))
        state = learn.accumulate(state, piece._replace(version=s.version, bootstrap=s.bootstrap[part]))
    after = learn.apply(state, jnp.float32(0))
    arguments = {"network": LINEAR, "actions": categorical(A), "settings": SETTINGS}
    gradient = jax.grad(lambda p: loss(p, s, jnp.float32(0.01), jnp.int32(0), **arguments)[0])(before.params)
    scale = 0.1 / (T * B - 2) if reduction == "mean" else 0.1
    jax.tree.map(
        lambda new, old, g: np.testing.assert_allclose(new, old - scale * g, rtol=1e-4, atol=1e-6),
        after.params,
        before.params,
        gradient,
    )
    assert after.update == 1
    assert after.pending == 0
    assert not any(leaf.any() for leaf in jax.tree.leaves(after.gradient))
    assert after.sums.transitions == T * B - 2
