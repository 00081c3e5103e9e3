"""Code that benchmarks share: emulators alone, acting alone, peers, and a description of the machine."""

import datetime
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from volvox.rollout.loop import LoopState, Stages, traced
from volvox.runs.directory import processor, revision
from volvox.types import Env, EnvGroup, Policy


def env_steps_per_s(groups: Sequence[EnvGroup], seconds: float = 5.0) -> float:
    """Timesteps per second of the emulators alone, in the compiled loop with nothing to compute; closes the groups."""
    b, spec = groups[0].num_envs, groups[0].spec

    def act(carry, memory, constants, g, timestep):
        del memory, constants, timestep
        # A cheap spread of actions, because the emulators' speed depends on the actions.
        spread = jnp.arange(b, dtype=jnp.int32) * 7 + carry * 5
        if spec.num_actions is None:
            assert spec.action_low is not None
            assert spec.action_high is not None
            each = (spread[:, None] + 3 * jnp.arange(spec.num_outputs)) % 11 / 10
            return carry + 1, spec.action_low + each * (spec.action_high - spec.action_low)
        return carry + 1, spread % spec.num_actions

    chunk = traced(Stages(act, lambda carry, memory, constants, g: (carry, memory)), groups)
    state = LoopState(tuple(group.init() for group in groups), jnp.int32(0), jnp.int32(0))
    num_beats = max(20, 4_000 // (b * len(groups)))  # of a call, so that Python's share is small
    state, _ = jax.block_until_ready(chunk(state, (), 10))
    began, beats = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        state, _ = jax.block_until_ready(chunk(state, (), num_beats))
        beats += num_beats
    rate = beats * b * len(groups) / (time.perf_counter() - began)
    for group, env in zip(groups, state.envs, strict=True):
        jax.block_until_ready(group.recv(env))  # nothing may be in flight when a pool is dropped
        group.close()
    return rate


def repeatedly(call, seconds: float) -> float:
    """Calls per second, without the first."""
    jax.block_until_ready(call())
    began, calls = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        jax.block_until_ready(call())
        calls += 1
    return calls / (time.perf_counter() - began)


def in_turns(calls: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Returns the milliseconds of `repeats` calls of each function, which take turns after one untimed call."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        jax.block_until_ready(call())
    for _ in range(repeats):
        for name, call in calls.items():
            began = time.perf_counter()
            jax.block_until_ready(call())
            times[name].append(1e3 * (time.perf_counter() - began))
    return times


def inference_steps_per_s(policy: Policy, env: Env, seconds: float) -> float:
    """Timesteps per second of acting alone: forward passes and samples, inside one compiled loop."""
    b = env.num_envs // env.num_groups
    num_timesteps = max(20, 4_000 // b)  # of a call, so that Python's share is small
    params = policy.init(jax.random.key(0))
    seen = jnp.zeros((b, *env.spec.observation_shape), env.spec.observation_dtype)

    @jax.jit
    def play(params, seen):
        def body(i, action):
            # The observation depends on the last action, as it does in the loop.
            output, _ = policy.apply(params, seen + action.ravel()[0].astype(seen.dtype), ())
            return policy.sample(jax.random.fold_in(jax.random.key(0), i), output)

        action = jnp.int32 if env.spec.num_actions is not None else jnp.float32
        return jax.lax.fori_loop(0, num_timesteps, body, jnp.zeros((b, *(env.spec.action_shape or ())), action))

    return num_timesteps * b * repeatedly(lambda: play(params, seen), seconds)


def run_peer(name: str, flags: Mapping[str, Any], python: str = sys.executable, **environment: str) -> dict[str, Any]:
    """Runs a script of `peers/` in its own process; returns the JSON object that it prints last."""
    script = Path(__file__).parent / "peers" / f"{name}.py"
    command = [python, str(script), *(x for key, value in flags.items() for x in (f"--{key}", str(value)))]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment})
    return json.loads(done.stdout.strip().splitlines()[-1])


def machine() -> dict[str, Any]:
    """Returns the machine, the version, the command and the date of the figures."""
    date = datetime.datetime.now(datetime.UTC).isoformat("T", "minutes")
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "device": jax.devices()[0].device_kind,
        "processor": processor(),
        "jax": jax.__version__,
        "made": {"commit": revision(), "command": sys.argv, "date": date},
    }


def show(figures: dict[str, Any], as_json: bool) -> None:
    """Prints figures as one JSON object, or on a line each."""
    if as_json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:32} {value:.3f}" if isinstance(value, float) else f"{name:32} {value}")
