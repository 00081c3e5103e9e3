"""The study of lag: one small run."""

import pytest


@pytest.mark.slow
def test_a_run_is_trained_once_and_drawn(module, tmp_path):
    small = {"task": "InvertedPendulum", "num_envs": 2, "segment_length": 5, "iterations": 2, "frames": 8_000}
    settings = module.Settings(**small, lags=(2,), ways=("plain returns",), seeds=1)
    resumed = module.dataclasses.replace(settings, resume=True)
    first, again = (
        module.learned(module.make_algorithm(how, 2, False), how, tmp_path, 0) for how in (settings, resumed)
    )
    assert first == again  # the second call finds the finished run
    assert first["lag_max"] == 2
    assert first["return"] == first["training_mean"][-1]
    figure = module.draw(settings, {"plain returns": {"2": [first, {"return": None}]}})
    assert len(figure.axes) == 2
    with pytest.raises(ValueError, match="frames"):
        module.make_algorithm(module.dataclasses.replace(settings, frames=10), 2, False)
