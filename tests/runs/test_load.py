"""Runs are loaded in any process, from what their directory says and from the parts that users pass in."""

import subprocess
import sys

import flax.linen as nn
import numpy as np
import pytest

import volvox as vx

from .conftest import assert_equal_trees, learning, random_walk, train


class UserNet(nn.Module):
    num_outputs: int
    width: int = 4

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.num_outputs)(nn.tanh(nn.Dense(self.width)(x)))


def test_a_run_is_rebuilt_from_its_directory(tmp_path):
    run = train(learning(), tmp_path, steps=1)
    loaded = vx.load(tmp_path)
    assert loaded.metrics == run.metrics
    assert loaded.interrupted is None
    assert_equal_trees(loaded.variables(), run.variables())
    assert loaded.evaluate(3).returns.shape == (3,)


def test_another_process_loads_it(evolved):
    program = f"import volvox as vx; print(len(vx.load({str(evolved.run_dir)!r}).metrics))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout == b"2\n"


def test_without_checkpoints_the_elite_is_played_and_the_rows_are_there(evolved, tmp_path):
    for name in ("config.json", "metrics.jsonl", "elite.json"):
        (tmp_path / name).write_bytes((evolved.run_dir / name).read_bytes())
    run = vx.load(tmp_path)
    assert run.state is None
    assert len(run.metrics) == 2
    assert_equal_trees(run.variables(), evolved.variables())
    (tmp_path / "elite.json").unlink()
    with pytest.raises(ValueError, match="no policy"):
        vx.load(tmp_path).variables()


def test_a_network_of_the_user_is_passed_as_a_class_or_as_an_object(tmp_path):
    env = vx.envs.cartpole(num_envs=8, groups=2, max_episode_steps=20)
    strategy = vx.GA(population_size=4, num_parents=1)
    run = train(vx.evolve(strategy, UserNet(2), env, noise=vx.population.Generator()), tmp_path, steps=1)
    with pytest.raises(ValueError, match=r"custom=\[UserNet\]"):
        vx.load(tmp_path)
    for custom in (UserNet, UserNet(2)):
        assert_equal_trees(vx.load(tmp_path, custom=[custom]).variables(), run.variables())


def test_another_network_is_refused(tmp_path):
    run = train(learning(), tmp_path, steps=1)
    larger = vx.networks.CategoricalMLP(run.algorithm.env.spec.num_outputs, (5,))
    with pytest.raises(ValueError, match="Dense_0"):
        vx.load(tmp_path, custom=[larger])


def test_an_environment_of_the_user_is_passed_as_an_object(evolved):
    other = vx.envs.cartpole(num_envs=16, groups=1, max_episode_steps=20)
    run = vx.load(evolved.run_dir, custom=[other])
    assert run.algorithm.env is other
    with pytest.raises(ValueError, match="max_episode_steps"):
        vx.load(evolved.run_dir, custom=[vx.envs.cartpole(num_envs=8, groups=2)])


def test_an_algorithm_of_the_user_is_passed_as_an_object(tmp_path):
    run = train(random_walk(), tmp_path, steps=3)
    with pytest.raises(ValueError, match=r"tests\.random_walk"):
        vx.load(tmp_path)
    np.testing.assert_array_equal(vx.load(tmp_path, algorithm=random_walk()).state["x"], run.state["x"])
    with pytest.raises(ValueError, match="size"):
        vx.load(tmp_path, algorithm=random_walk(size=4))


@pytest.mark.parametrize("content", [None, "{", "{}", '{"algorithm": {}, "key": {}}'])
def test_files_that_describe_no_run_are_one_error(content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=str(tmp_path)):
        vx.load(tmp_path)
    assert len(list(tmp_path.iterdir())) == (content is not None)
