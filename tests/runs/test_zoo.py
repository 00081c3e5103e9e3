"""Agents of the zoo: files of `Run.publish`, and those that come with volvox."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from flax import linen as nn
from safetensors import safe_open
from safetensors.numpy import save_file

import volvox as vx
from volvox import cli
from volvox.networks.genotypes import VirtualBatchNorm

from .conftest import learning

AGENTS = vx.zoo.list()
ATARI = [name for name, card in AGENTS.items() if card["protocol"] == "sticky"]
LONG = [] if os.environ.get("VOLVOX_LINEAGES") == "1" else [name for name in ATARI if name != "frostbite-ga"]
"""Agents whose episodes take long, and play as the others do; `make test-exact` plays them."""


@pytest.fixture(scope="module")
def learned():
    return vx.train(learning(), steps=1, progress=False)


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_a_published_policy_is_loaded_with_its_card(learned, tmp_path):
    path = learned.publish(tmp_path / "mine", num_episodes=3)
    assert path == tmp_path / "mine.safetensors"
    loaded, score = vx.zoo.load(tmp_path / "mine"), learned.evaluate(3)
    same(loaded.variables(), learned.variables())
    same(loaded.evaluate(3).returns, score.returns)
    card = vx.zoo.card(path)
    assert (card["environment"], card["mean"], card["num_episodes"]) == ("CartPole", score.mean, 3)


def test_a_loaded_agent_is_not_published_again(learned, tmp_path):
    loaded = vx.zoo.load(learned.publish(tmp_path / "mine", num_episodes=2))
    with pytest.raises(ValueError, match="copy that file"):
        loaded.publish(tmp_path / "copy")


def test_a_lineage_is_published_instead_of_weights(evolved, tmp_path):
    path = evolved.publish(tmp_path / "mine", num_episodes=2)
    assert path.stat().st_size < 3_000
    same(vx.zoo.load(path).variables(), evolved.variables())


class Normalized(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(VirtualBatchNorm()(nn.Dense(4)(x)))


def test_reference_statistics_are_published_with_the_weights(tmp_path):
    env = vx.envs.cartpole(num_envs=8, max_episode_steps=20)
    network = vx.networks.genotype(Normalized(), env.spec, reference=vx.reference_batch(env, size=16))
    run = vx.train(vx.evolve(vx.ES(population_size=8), network, env), steps=1, progress=False)
    path = run.publish(tmp_path / "mine", num_episodes=2)
    loaded = vx.zoo.load(path, custom=[Normalized]).variables()
    assert loaded.keys() == run.variables().keys() > {"params"}
    same(loaded, run.variables())


def test_weights_of_another_network_are_refused(learned, tmp_path):
    path = learned.publish(tmp_path / "mine", num_episodes=2)
    with safe_open(path, "numpy") as file:
        text, weights = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file({name: x.astype(np.float16) for name, x in weights.items()}, path, text)
    with pytest.raises(ValueError, match="do not fit"):
        vx.zoo.load(path)


@pytest.mark.parametrize(("name", "match"), [("nobody", "frostbite-ga"), ("run.json", "not a file of run.publish")])
def test_other_names_and_files_are_refused(name, match, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ValueError, match=match):
        vx.zoo.load(name)


class Hub:
    """Stands in for the Hub; files of a repository are in one folder."""

    def __init__(self, folder):
        self.folder = folder

    def create_repo(self, repository, *, exist_ok):
        assert exist_ok

    def upload_file(self, *, path_or_fileobj, path_in_repo, repo_id):
        given = path_or_fileobj
        (self.folder / path_in_repo).write_bytes(given if isinstance(given, bytes) else given.read_bytes())
        return f"https://hub/{repo_id}/{path_in_repo}"

    def hf_hub_download(self, repository, name):
        return str(self.folder / name)


def test_an_agent_goes_to_the_hub_and_back(learned, tmp_path, monkeypatch):
    hub = Hub(tmp_path)
    module = SimpleNamespace(HfApi=lambda: hub, hf_hub_download=hub.hf_hub_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    monkeypatch.chdir(tmp_path)
    assert vx.zoo.push_to_hub(learned, "me/mine", num_episodes=2) == "https://hub/me/mine/agent.safetensors"
    assert "hf://me/mine" in (tmp_path / "README.md").read_text()
    same(vx.zoo.load("hf://me/mine").variables(), learned.variables())
    assert cli.main(["play", "zoo:hf://me/mine", "--video"]) == 0
    assert (tmp_path / "mine.mp4").exists()


def test_the_hub_needs_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r"volvox-rl\[hub\]"):
        vx.zoo.load("hf://me/mine")


def test_the_zoo_is_listed(capsys):
    assert cli.main(["zoo"]) == 0
    assert "frostbite-ga" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(AGENTS.keys() - LONG))
def test_agents_play_as_their_cards_say(name):
    """The interval of fewer episodes overlaps that of the card; some are narrower than rounding."""
    card = AGENTS[name]
    score = vx.zoo.load(name).evaluate(4 if card["protocol"] == "sticky" else 10, seed=5)
    slack = 0.01 * abs(card["mean"])
    assert score.protocol == card["protocol"]
    assert score.low <= card["high"] + slack
    assert score.high >= card["low"] - slack


def test_agents_of_the_wheel_are_small():
    sizes = [path.stat().st_size for path in (Path(vx.zoo.__file__).parent / "agents").iterdir()]
    assert len(sizes) >= 10
    assert max(sizes) <= 100_000
    assert sum(sizes) <= 1_000_000
