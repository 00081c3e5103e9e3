"""Several devices, of one process or of many, that run the loop as one program, each with environments of its own.

Each device has its own part of the loop's state, and all parts have one shape. Outside of the program, an array of the
state has a leading device axis `[D, ...]`, which is sharded over the devices. Inside, a device sees its part `[...]`.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from volvox.types import ArrayTree, Axis, EnvGroup

_NAME = "device"


class Devices(NamedTuple):
    """The devices on which a loop runs as one program.

    Attributes:
      mesh: The devices of all processes. None: a single device, whose arrays have no device axis.
      divided: Whether each device has an equal part of the leading axis of the state, such as whole learners, and
        exchanges nothing with the others. Otherwise all devices begin with the same state.
    """

    mesh: Mesh | None = None
    divided: bool = False

    @property
    def axis(self) -> Axis:
        """The device axis for collective operations inside the program."""
        return Axis() if self.mesh is None or self.divided else Axis(_NAME, self.mesh.size)

    @property
    def numbers(self) -> tuple[int, ...]:
        """Indices of this process's devices among several devices."""
        mesh: Any = self.mesh
        return tuple(i for i, device in enumerate(mesh.devices.flat) if device in mesh.local_devices)

    def mapped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that every device calls with its part of the arguments, for use inside `jax.jit`.

        Arguments `[D, ...]` are split over the devices. Scalars are the same on all devices. Results are `[D, ...]`.
        """
        if self.mesh is None:
            return function

        def on_device(*args: ArrayTree) -> ArrayTree:
            results = function(*jax.tree.map(lambda x: x[0] if x.ndim else x, args))
            return jax.tree.map(lambda x: jnp.asarray(x)[None], results)

        @functools.wraps(function)
        def call(*args: ArrayTree) -> ArrayTree:
            args = jax.tree.map(jnp.asarray, args)
            specs = jax.tree.map(lambda x: P(_NAME) if x.ndim else P(), args)
            # All results are declared as varying (`out_specs`), so nothing is wrongly assumed to be replicated. The
            # check would require `jax.lax.pcast` for every constant from which a loop starts.
            mapped = jax.shard_map(on_device, mesh=self.mesh, in_specs=specs, out_specs=P(_NAME), check_vma=False)
            return mapped(*args)

        return call

    def placed(self, tree: ArrayTree) -> ArrayTree:
        """Makes arguments `[D, ...]` of the program: each device gets the tree, or its part of the leading axis."""
        if self.mesh is None:
            return tree
        size = self.mesh.size

        def part(i: int, x: Any) -> Any:
            return x.reshape(size, -1, *x.shape[1:])[i] if self.divided and np.ndim(x) else x

        return self.joined(*(jax.tree.map(functools.partial(part, i), tree) for i in self.numbers))

    def joined(self, *trees: ArrayTree) -> ArrayTree:
        """Makes arguments `[D, ...]` of the program from one tree for each device of this process."""
        mesh: Any = self.mesh
        devices, sharding, num_devices = mesh.local_devices, NamedSharding(mesh, P(_NAME)), mesh.size

        def place(*parts: Any) -> jax.Array:
            pairs = zip(parts, devices, strict=True)
            # Copies, because programs may be donated the result.
            arrays = [jax.device_put(jnp.asarray(x)[None], device, may_alias=False) for x, device in pairs]
            shape = (num_devices, *arrays[0].shape[1:])
            return jax.make_array_from_single_device_arrays(shape, sharding, arrays)

        return jax.tree.map(place, *trees)

    def whole(self, tree: ArrayTree) -> ArrayTree:
        """Undoes `placed`. All processes must call it together."""
        if not self.divided:
            return self.local(tree)
        return jax.tree.map(lambda x: x.addressable_data(0), _reduction(self.mesh, _undivided)(tree))

    def local(self, tree: ArrayTree) -> ArrayTree:
        """Returns the part of this process's first device, as arrays `[...]` of that device."""
        if self.mesh is None:
            return tree
        return jax.tree.map(lambda x: x.addressable_data(0)[0] if isinstance(x, jax.Array) else x, tree)

    def sum(self, tree: ArrayTree) -> Any:
        """Returns the sums of arrays `[D, ...]` over all devices, on the host. All processes must call it together."""
        return jax.device_get(tree if self.mesh is None else _reduction(self.mesh, jnp.sum)(tree))

    def max_over_processes(self, number: float) -> float:
        """Returns the maximum of a number over all processes, which must all call it together."""
        if self.mesh is None:
            return number
        return float(_reduction(self.mesh, jnp.max)(self.placed(np.float32(number))))

    def agree(self, tree: ArrayTree) -> bool:
        """Returns whether arrays `[D, ...]` are equal on all devices. All processes must call it together."""
        spreads = jax.device_get(_reduction(self.mesh, jnp.ptp)(tree))
        return not any(spread.any() for spread in jax.tree.leaves(spreads))


def _undivided(x: jax.Array, axis: int) -> jax.Array:
    return x[0] if x.ndim == 1 else jax.lax.collapse(x, axis, axis + 2)


@functools.cache
def _reduction(mesh: Any, function: Callable[..., jax.Array]) -> Callable[[ArrayTree], Any]:
    reduce = functools.partial(jax.tree.map, functools.partial(function, axis=0))
    return jax.jit(reduce, out_shardings=NamedSharding(mesh, P()))


SINGLE_DEVICE = Devices()


def devices_of(given: Sequence[Any] | None) -> Devices:
    """Returns the devices that learn together.

    Args:
      given: Devices of all processes, the same number of each. None: all devices if there are several processes,
        otherwise the default device.

    Raises:
      ValueError: A process has none of the devices, or fewer than another, or a device is given twice.
    """
    if jax.process_count() == 1 and (given is None or list(given) == jax.devices()[:1]):
        return SINGLE_DEVICE
    given = jax.devices() if given is None else given
    counts = [sum(device.process_index == i for device in given) for i in range(jax.process_count())]
    if not given or len(set(counts)) > 1 or len(set(given)) < len(given):
        raise ValueError(f"devices={list(given)}: give the same number of devices of each process, each device once.")
    return Devices(Mesh(np.array(sorted(given, key=lambda x: (x.process_index, x.id))), (_NAME,)))


def join_groups(devices: Devices, groups: Sequence[Sequence[EnvGroup]]) -> tuple[EnvGroup, ...]:
    """Makes the groups of this process's devices the groups of one program.

    Args:
      devices: All devices.
      groups: The groups of each device of this process.

    Returns:
      As many groups as one device has. Their states, timesteps and actions have a device axis.

    Raises:
      ValueError: The groups are driven from Python, and this process has several devices.
    """
    one = groups[0][0]
    if one.traceable:
        return tuple(_joined(devices, parts) for parts in zip(*groups, strict=True))
    if len(groups) > 1:
        raise ValueError(
            f"{one.spec.name} is driven from Python, which supports one device in each process; start as many "
            "processes as devices (volvox.distributed.initialize)."
        )
    return tuple(_driven(devices, group) for group in groups[0])


def _driven(devices: Devices, group: EnvGroup) -> EnvGroup:
    def recv(state: ArrayTree) -> tuple[ArrayTree, ArrayTree]:
        state, timestep = group.recv(state)
        return state, devices.joined(timestep)

    return group._replace(recv=recv, send=lambda state, action: group.send(state, devices.local(action)))


def _joined(devices: Devices, parts: tuple[EnvGroup, ...]) -> EnvGroup:
    one, first = parts[0], devices.numbers[0]

    def on_each(name: str) -> Callable[..., Any]:
        functions = [getattr(part, name) for part in parts]
        if one.resumable:  # pure functions of the state
            return functions[0]
        # A pool of emulators can only be stepped by the calls that were made for it.
        return lambda *args: jax.lax.switch(jax.lax.axis_index(_NAME) - first, functions, *args)

    return one._replace(
        init=lambda: devices.joined(*(part.init() for part in parts)),
        recv=on_each("recv"),
        send=on_each("send"),
        close=lambda: [part.close() for part in parts],
    )
