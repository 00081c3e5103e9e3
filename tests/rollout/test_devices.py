"""A single device runs the loop without a device axis; `tests/distributed` runs it on several."""

import numpy as np

from volvox.rollout.devices import ALONE


def test_one_device_has_no_device_axis():
    tree = {"a": np.ones(2)}
    assert ALONE.placed(tree) is ALONE.local(tree) is tree
    assert ALONE.mapped(len) is len
    assert ALONE.largest(3.0) == 3.0
    assert ALONE.agree(tree)
