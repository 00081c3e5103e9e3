"""The learners that docs/extending.md shows keep the promises of algorithms, and learn."""

import re
from pathlib import Path

import probes
import pytest

import volvox as vx

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
SHOWN = re.findall(r"(?<=\n\n)((?:(?: {4}.*)?\n)+)", PAGE.read_text())


def shown(name, names):
    """The class of this name, as the page writes it."""
    (block,) = [block for block in SHOWN if re.search(rf"^    class {name}:", block, re.MULTILINE)]
    text = "\n".join(line[4:] for line in block.splitlines())
    text = text[: text.index("\nenv = ")] if "\nenv = " in text else text[: text.index("\nvx.testing")]
    exec(text, names)
    return names[name]


@pytest.fixture(scope="module")
def names():
    made = {"__name__": "shown"}
    exec(
        "import dataclasses\nfrom typing import Any, NamedTuple\nimport jax, jax.numpy as jnp, optax, volvox as vx",
        made,
    )
    return made


@pytest.mark.slow
@pytest.mark.optimized
def test_the_learner_with_a_replay(names):
    dqn = shown("DQN", names)
    env = probes.corridor(length=4, num_envs=8, groups=2)
    settings = dqn(replay_size=2_000, learning_starts=100, batch_size=16, learning_rate=3e-3)
    run = vx.train(vx.learn(settings, vx.networks.MLP(2, (16,)), env), seed=0, steps=2, progress=False)
    assert run.evaluate(num_episodes=4).mean == 1.0
    vx.testing.check_algorithm(vx.learn(settings, vx.networks.MLP(2, (4,)), env))
    with pytest.raises(ValueError, match="replay_size=10 is too small"):
        vx.learn(dqn(replay_size=20), vx.networks.MLP(2, ()), env)
