"""An actor, without Ray: what it plays is what this process plays."""

import os
from importlib.metadata import version

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

from volvox import networks, population
from volvox._settings import describe
from volvox.distributed import ray
from volvox.distributed.actor import Actor, Answer, Order, code_of, installed, options
from volvox.distributed.bases import digests
from volvox.distributed.work import Work
from volvox.evolution.pools import Place, Pools, Request
from volvox.rollout.behaviors import Last
from volvox.types import Population

pytestmark = pytest.mark.optimized

ENV = probes.target(num_envs=4, groups=2, max_episode_steps=5)
NOISE, BEHAVIOR = population.Table(size=5_000), Last("elapsed_steps", 1)
N = 7


def genotype():
    return networks.genotype(networks.MLP(2, (4,)), ENV.spec)


def config():
    parts = {"network": genotype().policy.config, "env": ENV.config, "noise": NOISE, "behavior": BEHAVIOR}
    described = describe(parts)
    return {**described, "code": code_of(described)}


@pytest.fixture(scope="module")
def actor():
    made = Actor()
    made.prepare(config(), 4, 8, 1.0, options(), [])
    return made


def unchanged(params):
    return params


def narrow(path):
    return 0.1


def everyone(code):
    rows = jnp.arange(N, dtype=jnp.int32)
    bases = jax.tree.map(lambda x: x + jnp.arange(2.0).reshape(2, *[1] * (x.ndim - 1)), code.zeros(2))
    scale, initial = jnp.full(N, 0.5), rows % 3 == 0
    return Population(bases, rows % 2, rows * 11, scale, initial, jnp.full(N, 2, jnp.int32), jnp.zeros(N))


@pytest.mark.slow_except("False")
@pytest.mark.parametrize("test", [False, True])
def test_a_portion_is_played_as_here(actor, test):
    pools = Pools(genotype(), NOISE, ENV, BEHAVIOR, 2 * N, 1.0)
    members, place = everyone(pools.encoding), Place(test, 4, False)
    here, _ = pools.play(Request(members, 2, place, 3, 3), lambda progress: None)
    work, names, leaves = Work(members, 2), digests(members.bases), jax.tree.leaves(members.bases)
    given = [{name: [np.asarray(leaf[i]) for leaf in leaves]} for i, name in enumerate(names)]
    while (number := work.next(6)) is not None:
        answer = actor.play(Order(number, work.rows(number), place, 3, 99, names, None), given)
        assert answer.missing == ()
        assert 0 < answer.busy <= answer.stepped
        work.take(number, answer.results)
    jax.tree.map(np.testing.assert_array_equal, work.evaluation(), here)
    pools.close()


def test_missing_bases_are_asked_for(actor):
    code = Pools(genotype(), NOISE, ENV, BEHAVIOR, 2 * N, 1.0).encoding
    members = everyone(code)
    names = digests(jax.tree.map(lambda x: x + 7, members.bases))
    work = Work(members, 2)
    answer = actor.play(Order(work.next(3), work.rows(0), Place(False, 4, False), 3, 99, names, None), [])
    assert answer.results is None
    assert answer.missing == names


def test_a_portion_that_others_have_played_is_dropped(actor):
    work = Work(everyone(Pools(genotype(), NOISE, ENV, BEHAVIOR, 2 * N, 1.0).encoding), 2, first_portion=50)
    actor.drop(work.next(3))
    order = Order(50, work.rows(50), Place(False, 3, False), 3, 99, ((0, 0), (0, 0)), None)
    assert actor.play(order, []) == Answer(50)
    actor.drop(-1)


def test_an_actor_says_what_it_is(actor):
    about = actor.describe()
    assert about["process"] == os.getpid()
    assert about["versions"] == installed()
    assert {"python", "jax", "jaxlib", "numpy", "ray", "volvox's code"} <= set(about["versions"])


def test_an_environment_that_is_missing_here():
    there = config()
    there["env"]["made_by"] = {"call": "games_of_others:frostbite"}
    with pytest.raises(ValueError, match=r"env: .*games_of_others.*No module named") as caught:
        Actor().prepare(there, 4, 8, 1.0, {}, [])
    assert "\n" not in str(caught.value)


def test_other_code_of_an_environment_is_refused(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "games_of_mine.py"
    module.write_text(
        "import volvox as vx\n\n\n@vx.recorded\ndef far(*, num_envs):\n"
        "    return probes.target(num_envs=num_envs, groups=2, max_episode_steps=5)\n"
    )
    there = config()
    there["env"]["made_by"] = {"call": "games_of_mine:far", "num_envs": 4}
    there["code"] = code_of(there)
    assert "games_of_mine" in there["code"]
    Actor().prepare(there, 4, 8, 1.0, {}, [])
    module.write_text(module.read_text().replace("steps=5", "steps=6"))
    with pytest.raises(ValueError, match=r"other code than where the run began: games_of_mine \w+ \(there \w+\);"):
        Actor().prepare(there, 4, 8, 1.0, {}, [])


def test_versions_of_the_packages_of_environments_are_compared():
    made = {
        "env": {"call": "volvox.envs:gymnasium", "make_env": "CartPole-v1"},
        "network": {"type": "flax.linen:Dense"},
    }
    found = code_of(made)
    assert {name: code.split()[0] for name, code in found.items()} == {
        "flax.linen": version("flax"),
        "gymnasium": version("gymnasium"),
    }
    others = {"env": {"call": "nowhere.to_be_found:f", "type": "windy"}, "noise": {"function": "builtins:abs"}}
    assert code_of(others) == {"builtins": "missing", "nowhere.to_be_found": "missing"}


def test_a_genotype_with_functions_of_its_own_is_refused_before_it_begins():
    """An actor would play the network without them."""
    for own in ({"prepare": unchanged}, {"initial_std": narrow}):
        made = networks.genotype(networks.MLP(2, (4,)), ENV.spec, **own)
        described = describe({"network": made.policy.config, "env": ENV.config, "noise": NOISE, "behavior": BEHAVIOR})
        with pytest.raises(ValueError, match=f"the genotype was made with functions of its own, {next(iter(own))}"):
            ray(num_actors=2).player(described, 4, 1.0)


def test_a_network_that_becomes_another_one_is_refused():
    there = config()
    there["network"]["num_parameters"] += 1  # as the hash of another reference batch
    with pytest.raises(ValueError, match="made from its settings it is another"):
        Actor().prepare(there, 4, 8, 1.0, {}, [])


def test_another_number_of_environments_is_refused():
    with pytest.raises(ValueError, match="it has 4 environments, and 5 are wanted"):
        Actor().prepare(config(), 5, 8, 1.0, {}, [])
