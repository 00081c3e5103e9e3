"""Lineages and the genomes read from them, rebuilt against NumPy written from the definition."""

import json

import numpy as np
import probes
import pytest

from volvox import networks, population
from volvox.population import lineage
from volvox.population.decoding import Member

pytestmark = pytest.mark.optimized

NET = networks.genotype(networks.MLP(2, hidden=(5,)), probes.constant().spec)
CODE = population.encoding(NET, population.Table(size=5_000))


def test_lineage_is_walked_back():
    log = lineage.zeros(0, 2)
    row = lambda parent, seed, scale, initial: Member(  # noqa: E731
        np.array(parent), np.array(seed), np.array(scale, np.float32), np.array(initial)
    )
    log = lineage.extend(log, row([0, 0], [10, 11], [0.5, 0.5], [True, True]))
    log = lineage.extend(log, row([0, 1], [12, 13], [0.1, 0.0], [False, False]))  # base 1 carried over
    log = lineage.extend(log, row([1, 0], [14, 15], [0.25, 0.25], [False, False]))
    assert lineage.genome(log, 0) == [11, [14, 0.25]]
    assert lineage.genome(log, 1) == [10, [12, 0.1], [15, 0.25]]


def test_incomplete_lineage_is_an_error():
    parents = np.array([2, 2, 2])
    row = Member(parents, np.arange(3), np.full(3, 0.5, np.float32), np.zeros(3, bool))
    with pytest.raises(ValueError, match="base 0"):
        lineage.genome(lineage.extend(lineage.zeros(0, 3), row), 0)


@pytest.mark.parametrize(
    "text", ["{}", "[]", "[1, [2]]", "[1, [2, 0.1], [3, null]]", "[-1]", "[1.5]", "[1, [2, NaN]]", "[1, [2, 3.41e38]]",
             "[1, [2, 0.1]", "\udcff"],
)  # fmt: skip
def test_malformed_lineage_files_are_named(tmp_path, text):
    path = tmp_path / "bad.json"
    path.write_text(text, errors="surrogateescape")
    with pytest.raises(ValueError, match=r"bad\.json"):
        population.load(path)


def test_the_largest_power_is_read_as_it_was_written(tmp_path):
    genome = [1, [2, float(np.finfo(np.float32).max)]]
    (tmp_path / "elite.json").write_text(json.dumps(genome))
    assert population.load(tmp_path / "elite.json") == genome


def test_genome_of_a_larger_table_is_refused():
    with pytest.raises(ValueError, match="4990"):
        population.rebuild(CODE, [0, [4_990, 0.1]])
