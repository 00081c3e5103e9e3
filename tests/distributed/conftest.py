"""A cluster of Ray on this machine, with fast checks of health, shared by a module's tests."""

import warnings

import pytest

_FAST = {
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 500,
    "health_check_failure_threshold": 2,
    "health_check_initial_delay_ms": 0,
}


class Machines:
    """Nodes of a local cluster, which are processes.

    Attributes:
      address: Of the cluster.
    """

    def __init__(self):
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "object_store_memory": 80 * 2**20, "_system_config": _FAST}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self.address = self._cluster.address
        self._nodes = []

    def add(self, count=1):
        """Adds machines with one CPU; returns the last."""
        for _ in range(count):
            self._nodes.append(self._cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20))
        return self._nodes[-1] if self._nodes else None

    def kill(self, node):
        """Ends a machine without grace."""
        self._nodes.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)

    def set(self, count):
        """Leaves or adds machines, until there are so many."""
        while len(self._nodes) > count:
            self.kill(self._nodes[-1])
        self.add(count - len(self._nodes))
        self._cluster.wait_for_nodes()  # until those that were killed are known to be dead

    def close(self):
        """Ends all."""
        import ray

        ray.shutdown()
        self._cluster.shutdown()


@pytest.fixture(scope="module")
def machines():
    pytest.importorskip("ray")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = Machines()
        yield made
        made.close()
