"""Settings of the Ray actors that evaluate a population."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

from volvox._checks import integer, number


@dataclasses.dataclass(frozen=True, kw_only=True)
class RaySettings:
    """Evaluates populations on Ray actors, each with its own environments, slots, and noise table.

    Use it as `vx.distributed.ray(...)`. A population travels as seeds: each actor decodes the parameters itself. On
    pure-JAX environments the results do not depend on the number of actors; on other environments the initial states
    depend on the actor that runs the episode. If an actor dies, Ray restarts it, and another actor evaluates its chunk
    of the population again.

    Network, environment and behavior are pickled, so they may be defined in a script or a notebook. Every machine needs
    the same versions of Python, Ray, JAX and volvox, and your own modules (see `runtime_env` of `ray.init`). If this
    process is connected to Ray already, that connection is used. Ray keeps running when the run ends; `ray.shutdown()`
    stops a local cluster.

    Example:
      >>> workers = vx.distributed.ray(num_actors="nodes")
      >>> algorithm = vx.evolve(vx.GA(population_size=1_000), network, env, workers=workers)

    Attributes:
      num_actors: Number of actors. `"nodes"`: one on each machine of the cluster that has CPUs, including machines that
        join later. `"gpus"`: one for each GPU. 1 or None evaluates in this process, without Ray.
      num_cpus_per_actor: CPUs that Ray reserves for an actor. None: all of the machine for `"nodes"`, otherwise 1.
      num_gpus_per_actor: GPUs that Ray reserves for an actor; always 1 for `"gpus"`.
      address: Address of the cluster, such as `"10.0.0.1:6379"`. None: `RAY_ADDRESS`, or a cluster that runs on this
        machine, or a new local one.
      wait: Seconds without any running actor after which an evaluation raises `TimeoutError`.
    """

    num_actors: int | Literal["nodes", "gpus"] | None = "nodes"
    num_cpus_per_actor: int | None = None
    num_gpus_per_actor: float = 0
    address: str | None = None
    wait: float = 600.0

    def __post_init__(self) -> None:
        """Raises ValueError for a setting out of range."""
        if isinstance(self.num_actors, str) and self.num_actors not in ("nodes", "gpus"):
            raise ValueError(f"num_actors={self.num_actors!r}: give a number, 'nodes' or 'gpus'.")
        if self.num_actors is not None and not isinstance(self.num_actors, str):
            integer("num_actors", self.num_actors, low=1)
        if self.num_cpus_per_actor is not None:
            integer("num_cpus_per_actor", self.num_cpus_per_actor, low=1)
        number("num_gpus_per_actor", self.num_gpus_per_actor, low=0)
        number("wait", self.wait, above=0)

    def evaluator(self, make_local: Callable[[], Any], num_slots: int, chunk_seconds: float) -> Any:
        """Returns the evaluator of a population; no actor starts before its first evaluation.

        Args:
          make_local: Picklable function without arguments that makes a `volvox.rollout.evaluator.PopulationEvaluator`.
          num_slots: Environments of each actor.
          chunk_seconds: Approximate interval in seconds at which progress and interrupts are checked.

        Returns:
          A `RayEvaluator`, or the result of `make_local` if there is one actor only.

        Raises:
          ImportError: Ray is not installed.
        """
        if self.num_actors in (None, 1):
            return make_local()
        try:
            from volvox.distributed.ray_evaluator import RayEvaluator
        except ImportError as error:
            raise ImportError("vx.distributed.ray needs Ray: pip install 'volvox[ray]'") from error
        return RayEvaluator(self, make_local, num_slots, chunk_seconds)
