"""Any object with `ask` and `tell` is a strategy, and `evolve` keeps its best policy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

import volvox as vx
from volvox import Validation, networks, population

ENV = probes.target(size=2, num_envs=8, groups=2, max_episode_steps=3)
NET = networks.MLP(2, hidden=())
NOISE = population.Table(size=5_000)


@dataclasses.dataclass(frozen=True)
class Counting:
    """Member i of generation g has the parameters 10 g + i everywhere."""

    population_size: int = 4

    def init(self, key, encoding):
        return jnp.int32(0)

    def ask(self, key, state, encoding):
        return self.of(10.0 * state + jnp.arange(self.population_size), encoding), state

    def of(self, values, encoding):
        vectors = jnp.broadcast_to(values[:, None], (values.size, encoding.num_parameters))
        return population.explicit(population.from_vectors(encoding, vectors))

    def tell(self, key, state, asked, evaluation, encoding):
        return state + 1, {"drawn": jax.random.uniform(key)}


class WithMean(Counting):
    """The mean 10 g + 0.5 is the only challenger, and the first member does not play."""

    def ask(self, key, state, encoding):
        asked, state = super().ask(key, state, encoding)
        return asked._replace(episodes=jnp.array([0, 7, 7, 7])), state

    def candidates(self, state, asked, evaluation, encoding):
        return self.of(10.0 * (state[None] - 1) + 0.5, encoding)


class InPython(Counting):
    traceable = False

    def tell(self, key, state, asked, evaluation, encoding):
        assert isinstance(float(evaluation.returns[0, 0]), float)  # no tracer
        return jnp.asarray(np.asarray(state) + 1), {"drawn": np.float32(0.5)}


def steps(strategy, workers, **validation):
    validation = Validation(**{"num_elite_candidates": 3, "num_validation_episodes": 2, **validation})
    algorithm = vx.evolve(strategy, NET, ENV, noise=NOISE, validation=validation, workers=workers)
    states, rows = workers.play(algorithm)
    return rows, [values(state.bases)[0] for state in states[1:]]


def values(params):
    """The number that all parameters of each network are."""
    vectors = np.asarray(population.to_vectors(params))
    assert (vectors == vectors[:, :1]).all()
    return vectors[:, 0]


def members(asked):
    return values(jax.tree.map(lambda x: x[asked.parent], asked.bases))


@pytest.mark.parametrize("strategy", [Counting(), InPython()])
def test_the_elite_plays_against_the_best_of_training(scripted, strategy):
    workers = scripted([0, 3, 9, 1], [1.0, 5.0, 2.0], [0, 3, 9, 1], [4.0, 6.0, 1.0])
    rows, elites = steps(strategy, workers)
    np.testing.assert_array_equal(members(workers.asked[1]), [2, 1, 3])
    np.testing.assert_array_equal(members(workers.asked[3]), [1, 12, 11])  # the elite so far is the first
    assert elites == [1, 12]
    assert [row["elite_is_new"] for row in rows] == [True, True]
    assert "drawn" in rows[0]
    # The loop is compiled for one number of rows.
    assert {jax.tree.leaves(asked.bases)[0].shape[0] for asked in workers.asked} == {5}


def test_a_strategy_may_name_its_challengers_and_the_members_that_play(scripted):
    workers = scripted([0, 3, 9, 1], [1.0, 0.0], [0, 3, 9, 1], [0.0, 2.0], [0, 3, 9, 1], [3.0, 2.0])
    rows, elites = steps(WithMean(), workers)
    np.testing.assert_array_equal(workers.asked[0].episodes, [0, 1, 1, 1])
    np.testing.assert_array_equal(workers.asked[1].episodes, [2, 0])  # there is no elite yet
    np.testing.assert_array_equal(members(workers.asked[3]), [10.5, 0.5])
    assert elites == [0.5, 0.5, 20.5]
    np.testing.assert_array_equal([row["elite_score"] for row in rows], [np.nan, 2.0, np.nan])


class NoTuple(Counting):
    def ask(self, key, state, encoding):
        return state


def test_each_evaluation_has_its_own_seeds(scripted, monkeypatch):
    """Those of later generations too, so that a resumed run does not repeat its episodes."""
    workers, seeds = scripted(*[[0, 3, 9, 1]] * 4), []
    evaluate = workers.evaluate

    def noted(*given, **options):
        seeds.extend((options["seed"], options["pool_seed"]))
        return evaluate(*given, **options)

    monkeypatch.setattr(workers, "evaluate", noted)
    workers.play(vx.evolve(vx.GA(population_size=4, num_parents=2), NET, ENV, noise=NOISE, workers=workers))
    assert len(set(seeds[::2])) == 4
    assert seeds[1] == seeds[3] != seeds[5] == seeds[7]


def test_bad_strategies_and_settings_are_refused(scripted):
    for strategy in (object(), Counting, NoTuple()):
        with pytest.raises((TypeError, AttributeError)):
            vx.evolve(strategy, NET, ENV, noise=NOISE)
    with pytest.raises(ValueError, match="num_elite_candidates"):
        vx.evolve(Counting(), NET, ENV, validation=Validation(num_elite_candidates=5))
    with pytest.raises(ValueError, match="num_elite_candidates"):
        Validation(num_elite_candidates=1)
