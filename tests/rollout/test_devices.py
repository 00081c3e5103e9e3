"""A single device runs the loop without a device axis; `tests/distributed` runs it on several."""

import numpy as np

from volvox.rollout.devices import SINGLE_DEVICE


def test_one_device_has_no_device_axis():
    tree = {"a": np.ones(2)}
    assert SINGLE_DEVICE.placed(tree) is SINGLE_DEVICE.local(tree) is tree
    assert SINGLE_DEVICE.mapped(len) is len
    assert SINGLE_DEVICE.max_over_processes(3.0) == 3.0
    assert SINGLE_DEVICE.agree(tree)
