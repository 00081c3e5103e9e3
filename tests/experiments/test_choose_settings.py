"""The studies of default settings: the algorithms of their variants, one small run, and the table of its result."""

import dataclasses

import pytest


@pytest.mark.slow
def test_variants_make_algorithms(module):
    pytest.importorskip("gymnax")
    for study in module.STUDIES.values():
        algorithm = module.make_algorithm(study, list(study.variants)[-1])
        algorithm.close()
        assert len(algorithm.learners) == study.num_learners


@pytest.mark.slow
def test_a_small_study_is_shown(module, tmp_path):
    study = dataclasses.replace(module.STUDIES["ppo-cartpole"], timesteps=20_480, num_learners=2, num_episodes=2)
    found = module.learned(study, "value clip, lag 1", tmp_path)
    assert len(found["timesteps"]) == len(found["evaluated"]) == module.NUM_POINTS
    assert found["settings"]["value_clip"] == 0.2
    assert module.learned(study, "value clip, lag 1", tmp_path) == found  # the second call finds the finished run
    header, _, row = module.lines(study, {"value clip, lag 1": found})
    assert header.count("evaluated, ") == row.count(" [") - 1 == 5
