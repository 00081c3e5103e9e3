"""Returns and V-trace against NumPy written from the definitions."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from volvox.data import lambda_returns
from volvox.learners.a3c import vtrace


def trajectory(length, seed, decays=(1.0,)):
    rng = np.random.default_rng(seed)
    draw = lambda: rng.standard_normal(length).astype(np.float32)  # noqa: E731
    value = rng.standard_normal(length + 1).astype(np.float32)
    return {
        "v_tm1": value[:-1],
        "v_t": value[1:],
        "r_t": draw(),
        "discount_t": (0.9 * (rng.random(length) > 0.2)).astype(np.float32),
        "rho_tm1": np.exp(draw()),
        "lambda_t": rng.choice(np.float32(decays), length),
    }


def returns_by_definition(reward, discount, next_value, decay):
    """The λ-return as the mixture of n-step returns that defines it, each written out."""
    length = len(reward)
    out = np.zeros(length)
    for t in range(length):
        total, weight = 0.0, 1.0
        for n in range(1, length - t + 1):
            last = t + n - 1
            partial = sum(np.prod(discount[t:k]) * reward[k] for k in range(t, last + 1))
            partial += np.prod(discount[t : last + 1]) * next_value[last]
            share = weight * (1.0 if last == length - 1 else 1.0 - decay[last])
            total += share * partial
            weight *= decay[last]
        out[t] = total
    return out


def vtrace_by_definition(value, next_value, reward, discount, ratio, decay, rho_clip, c_clip):
    """Equation (1) of the paper: a sum of products, not a recursion."""
    length = len(reward)
    rho, c = np.minimum(rho_clip, ratio), decay * np.minimum(c_clip, ratio)
    delta = rho * (reward + discount * next_value - value)
    target = np.array(
        [value[s] + sum(np.prod(discount[s:t] * c[s:t]) * delta[t] for t in range(s, length)) for s in range(length)]
    )
    following = np.append(target[1:], next_value[-1])
    mixed = decay * following + (1 - decay) * next_value
    return target, rho * (reward + discount * mixed - value)


@given(st.sampled_from([1, 2, 12]), st.integers(0, 1_000))
@settings(max_examples=25, deadline=None)
def test_lambda_returns_are_a_mixture_of_n_step_returns(length, seed):
    t = trajectory(length, seed, decays=(0.0, 0.3, 1.0))
    arguments = [t[name] for name in ("r_t", "discount_t", "v_t", "lambda_t")]
    got = lambda_returns(*arguments)
    np.testing.assert_allclose(got, returns_by_definition(*arguments), rtol=1e-4, atol=1e-5)


def test_a_return_stops_at_a_termination_and_bootstraps_at_a_time_limit():
    reward = np.float32([1, 2, 4, 8])
    next_value = np.float32([100, 200, 300, 400])
    terminated = lambda_returns(reward, np.float32([0.5, 0, 0.5, 0.5]), next_value, np.ones(4, np.float32))
    np.testing.assert_allclose(terminated, [1 + 0.5 * 2, 2, 4 + 0.5 * (8 + 200), 8 + 200])
    truncated = lambda_returns(reward, np.full(4, 0.5, np.float32), next_value, np.float32([1, 0, 1, 1]))
    np.testing.assert_allclose(truncated, [1 + 0.5 * (2 + 100), 2 + 100, 4 + 0.5 * (8 + 200), 8 + 200])


@given(st.sampled_from([1, 2, 12]), st.integers(0, 1_000), st.sampled_from([(1.0, 1.0), (2.0, 0.5), (10.0, 10.0)]))
@settings(max_examples=25, deadline=None)
def test_vtrace_is_the_papers_sum(length, seed, clips):
    t = trajectory(length, seed, decays=(0.0, 0.7, 1.0))
    arguments = [t[name] for name in ("v_tm1", "v_t", "r_t", "discount_t", "rho_tm1", "lambda_t")]
    found_target, found_advantage = vtrace(*arguments, rho_clip=clips[0], c_clip=clips[1])
    target, advantage = vtrace_by_definition(*arguments, *clips)
    np.testing.assert_allclose(found_target, target, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found_advantage, advantage, rtol=1e-4, atol=1e-4)
