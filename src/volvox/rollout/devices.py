"""The devices of one or several processes that run the loop as one program, each with pools of its own.

Every device has its part of a state, and all parts have one shape. Between two calls of a program, an array holds the
parts of this process's devices under the shape of one part. JAX calls such an array replicated; what learning changes
is equal everywhere, and what acting changes is not. Reading it gives the part of the first device of this process.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P


from volvox.types import ArrayTree, Axis, EnvGroup

_NAME = "devices"
watched: list = []
_OF_EXCHANGES = ("Gloo", "NCCL", "coordination service")
"""Words of JAX's errors where an exchange between processes failed."""


class Devices(NamedTuple):
    """The devices on which a loop runs as one program.

    Attributes:
      mesh: Those of all processes; None: one device of this process, without others.
    """

    mesh: Mesh | None = None

    @property
    def axis(self) -> Axis:
        """What the program of a device sees of the others."""
        return Axis() if self.mesh is None else Axis(_NAME, self.mesh.size)

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of this process's devices among all."""
        if self.mesh is None:
            return (0,)
        return tuple(i for i, device in enumerate(self.mesh.devices.flat) if device in self.mesh.local_devices)

    def mapped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that every device calls with its parts of the arguments, for `jax.jit`."""
        if self.mesh is None:
            return function
        return jax.shard_map(function, mesh=self.mesh, in_specs=P(), out_specs=P(), check_vma=False)

    def placed(self, *trees: ArrayTree) -> ArrayTree:
        """Places trees as arguments of a program: one for each device of this process, or one for all of them."""
        if self.mesh is None:
            return trees[0]
        devices, sharding = self.mesh.local_devices, NamedSharding(self.mesh, P())
        trees = trees * len(devices) if len(trees) == 1 else trees

        def one(*parts: Any) -> jax.Array:
            # A copy, because programs may be donated the result.
            arrays = [
                jax.device_put(part, device, may_alias=False) for part, device in zip(parts, devices, strict=True)
            ]
            return jax.make_array_from_single_device_arrays(arrays[0].shape, sharding, arrays)

        return jax.tree.map(one, *trees)

    def local(self, tree: ArrayTree) -> ArrayTree:
        """Returns the part of this process's first device, as arrays of that device alone."""
        return tree if self.mesh is None else jax.tree.map(lambda x: x.addressable_data(0), tree)

    def sum(self, tree: ArrayTree) -> Any:
        """Returns the sums over all devices, on the host. Every process calls this at the same point of its run."""
        if self.mesh is None:
            return jax.device_get(tree)
        with self.together():
            return jax.device_get(self.waited(_reduced(self, False)(tree)))

    def largest(self, number: float) -> float:
        """Returns the largest of the numbers that processes give. Every process calls this at the same point."""
        if self.mesh is None:
            return number
        with self.together():
            return float(self.waited(_reduced(self, True)(np.float32(number))))

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Marks a section of code that waits for the other processes.

        On CPUs JAX computes what exchanges anything while it is called, and nothing can interrupt that. If another
        process hangs, this one is therefore ended by the thread of `peers`, where it cannot end itself.

        Raises:
          ConnectionError: Another process has ended, or gives no sign of life.
        """
        peers = watched[-1] if watched and self.mesh is not None else None
        try:
            if peers is not None:
                peers.needed += 1
            yield
        except (ConnectionError, ValueError, RuntimeError) as error:
            theirs = isinstance(error, ConnectionError) or any(word in str(error) for word in _OF_EXCHANGES)
            if peers is None or peers.lost or not theirs:
                raise
            peers.lost, reason = True, str(error).partition("\n")[0]
            raise ConnectionError(f"the processes cannot go on together: {reason}; start all of them anew") from error
        finally:
            if peers is not None:
                peers.needed -= 1

    def waited(self, tree: ArrayTree, patience: float = float("inf"), *, on_timeout: str = "") -> ArrayTree:
        """Waits for arrays, and returns them.

        Args:
          tree: Arrays, or numbers, which are there at once.
          patience: Seconds after which this ends with an error.
          on_timeout: What it then says.

        Raises:
          ConnectionError: Another process has ended, or gives no sign of life.
          TimeoutError: The arrays were not there in time.
        """
        peers = watched[-1] if watched and self.mesh is not None else None
        # Pauses are added up: a clock would go on while the process, and its emulators with it, are stopped (Ctrl-Z).
        waited, pause, polls, silent = 0.0, 1e-5, 0, 0.0
        ready = [x.is_ready for x in jax.tree.leaves(tree) if hasattr(x, "is_ready")]
        while not all(is_ready() for is_ready in ready):
            if waited > patience:
                raise TimeoutError(on_timeout)
            if peers is not None:
                silent, polls = (silent + pause, polls) if peers.polls == polls else (0.0, peers.polls)
                unheard = "process 0, through which processes find each other, does not answer"
                if problem := unheard if silent > peers.patience else peers.problem():
                    raise ConnectionError(problem)
            time.sleep(pause)
            waited += pause
            pause = min(2 * pause, 1e-3)
        return tree if self.mesh is None else jax.block_until_ready(tree)


ALONE = Devices()


def devices_of(given: Sequence[Any] | None) -> Devices:
    """Returns the devices that learn together.

    Args:
      given: Those of all processes, as many of each. None: all there are if there are several processes; otherwise one.

    Raises:
      ValueError: A process has none of them, or fewer than another, or one is given twice.
    """
    if jax.process_count() == 1 and (given is None or list(given) == jax.devices()[:1]):
        return ALONE
    given = jax.devices() if given is None else given
    counts = [sum(device.process_index == i for device in given) for i in range(jax.process_count())]
    if not given or len(set(counts)) > 1 or len(set(given)) < len(given):
        told = f"devices={list(given)} has {counts} devices of processes 0 to {len(counts) - 1}"
        raise ValueError(f"{told}: give as many of each process, each once.")
    return Devices(Mesh(np.array(sorted(given, key=lambda x: (x.process_index, x.id))), (_NAME,)))


@functools.cache
def _reduced(devices: Devices, largest: bool) -> Callable[[ArrayTree], ArrayTree]:
    function = functools.partial(jax.lax.pmax, axis_name=_NAME) if largest else devices.axis.sum
    return jax.jit(devices.mapped(function))


def joined(devices: Devices, groups: Sequence[Sequence[EnvGroup]]) -> tuple[EnvGroup, ...]:
    """Makes the groups of this process's devices the groups of one program.

    Args:
      devices: All devices.
      groups: For each device of this process its groups.

    Returns:
      As many groups as one device has; the state of each has the parts of all of them.

    Raises:
      ValueError: Python drives the groups, which it does for one device of a process.
    """
    if len(groups) > 1 and not all(group.traceable for part in groups for group in part):
        raise ValueError(
            f"{groups[0][0].spec.name} is driven from Python, for one device; take as many processes as devices "
            "(volvox.distributed.initialize)."
        )
    return tuple(_joined(devices, parts) for parts in zip(*groups, strict=True))


def _joined(devices: Devices, parts: tuple[EnvGroup, ...]) -> EnvGroup:
    one = parts[0]

    def init() -> ArrayTree:
        states = [part.init() for part in parts]
        return devices.placed(*states) if one.traceable else states[0]

    def close() -> None:
        for part in parts:
            part.close()

    def switched(name: str) -> Callable[..., Any]:
        functions = [getattr(part, name) for part in parts]
        if len(parts) == 1 or one.resumable:  # all there is is the state
            return functions[0]
        # A pool belongs to the call that steps it.
        first = devices.numbers[0]
        return lambda *args: jax.lax.switch(devices.axis.number() - first, functions, *args)

    return one._replace(init=init, recv=switched("recv"), send=switched("send"), close=close)
