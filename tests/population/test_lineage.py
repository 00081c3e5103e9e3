"""Lineages and the genomes read from them, rebuilt against NumPy written from the definition."""

import json

import jax
import numpy as np
import probes
import pytest

from volvox import networks, population
from volvox.ops import flat
from volvox.population import Genome, Member, lineage

pytestmark = pytest.mark.optimized

NET = networks.genotype(networks.MLP(2, hidden=(5,)), probes.constant().spec)
CODE = population.encoding(NET, population.Table(size=5_000))


def numpy_genome(genome: Genome, n: int, table: np.ndarray) -> np.ndarray:
    """The published decoding: theta = table[i0] * init scale, then += power * table[i], in float32."""
    like = CODE.like
    scale = np.zeros(n, np.float32)
    for leaf, offset in zip(jax.tree.leaves(like), jax.tree.leaves(flat.leaf_offsets(like)), strict=True):
        if len(leaf.shape) > 1:
            fan_in = int(np.prod(leaf.shape[:-1]))
            scale[offset : offset + int(np.prod(leaf.shape))] = np.float32(1 / np.sqrt(fan_in))
    theta = table[genome.initial_seed : genome.initial_seed + n] * scale
    for seed, power in genome.mutations:
        theta = theta + np.float32(power) * table[seed : seed + n]
    return theta


def test_rebuilding_equals_numpy_to_the_bit():
    n = CODE.num_parameters
    table = np.asarray(CODE.data)
    genome = Genome(17, ((400, 0.002), (1_000, 0.1), (4_000, 0.0023)))
    rebuilt = np.asarray(flat.flatten(population.rebuild(CODE, genome)))
    np.testing.assert_array_equal(rebuilt.view(np.int32), numpy_genome(genome, n, table).view(np.int32))


def test_lineage_is_walked_back():
    log = lineage.zeros(0, 2)
    row = lambda parent, seed, scale, initial: Member(  # noqa: E731
        np.array(parent), np.array(seed), np.array(scale, np.float32), np.array(initial)
    )
    log = lineage.extend(log, row([0, 0], [10, 11], [0.5, 0.5], [True, True]))
    log = lineage.extend(log, row([0, 1], [12, 13], [0.5, 0.0], [False, False]))  # base 1 carried over
    log = lineage.extend(log, row([1, 0], [14, 15], [0.25, 0.25], [False, False]))
    assert lineage.genome(log, 0) == Genome(11, ((14, 0.25),))
    assert lineage.genome(log, 1) == Genome(10, ((12, 0.5), (15, 0.25)))


def test_incomplete_lineage_is_an_error():
    parents = np.array([2, 2, 2])
    row = Member(parents, np.arange(3), np.full(3, 0.5, np.float32), np.zeros(3, bool))
    with pytest.raises(ValueError, match="base 0"):
        lineage.genome(lineage.extend(lineage.zeros(0, 3), row), 0)


def test_json_round_trip_in_the_published_format(tmp_path):
    genome = Genome(5, ((6, float(np.float32(0.002))), (7, float(np.float32(0.1)))))
    assert lineage.to_json(genome) == [5, [6, 0.002], [7, 0.1]]
    population.save(tmp_path / "elite.json", genome)
    assert json.loads((tmp_path / "elite.json").read_text()) == [5, [6, 0.002], [7, 0.1]]
    assert population.load(tmp_path / "elite.json") == genome


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "not a genome"),
        ("[]", "not a genome"),
        ("[1, [2]]", "entry 1"),
        ("[1, [2, 0.1], [3, null]]", "entry 2"),
        ("[-1]", "entry 0"),
        ("[1.5]", "entry 0"),
        ("[1, [2, NaN]]", "entry 1"),
        ("[1, [true, 0.1]]", "entry 1"),
        ("[1, [2, 0.1]", "Expecting"),
    ],
)
def test_malformed_lineage_files_are_named(tmp_path, text, message):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        population.load(path)
    assert "bad.json" in str(error.value)


def test_a_file_that_is_no_text_is_named(tmp_path):
    (tmp_path / "bad.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="bad"):
        population.load(tmp_path / "bad.json")


def test_genome_of_a_larger_table_is_refused():
    with pytest.raises(ValueError, match="4990"):
        population.rebuild(CODE, Genome(0, ((4_990, 0.1),)))


def test_the_largest_power_is_read_as_it_was_written():
    genome = Genome(1, ((2, float(np.finfo(np.float32).max)),))
    assert lineage.from_json(lineage.to_json(genome)) == genome
    with pytest.raises(ValueError, match="entry 1"):
        lineage.from_json([1, [2, 3.41e38]])
