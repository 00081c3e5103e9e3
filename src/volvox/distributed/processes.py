"""Several processes that learn together, on one machine or many: `jax.distributed`, with what a run needs of it."""

import atexit
import os
import socket
from collections.abc import Sequence

import jax

# Of these, JAX has no public names.
from jax._src.clusters import ClusterEnv
from jax._src.distributed import global_state
from jax._src.xla_bridge import backends_are_initialized

from volvox._checks import integer, number
from volvox.rollout.peers import Peers, watched

_SECONDS_TO_END = 10
_TUNING = "xla_gpu_shard_autotuning"


def initialize(
    address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    local_device_ids: int | Sequence[int] | None = None,
    wait: float = 300.0,
    patience: float = 30.0,
) -> None:
    """Joins this process to the others of a run; they then learn together (`volvox.learn`).

    Call it once, before anything that computes with JAX, in every process. Without arguments they are what SLURM, Open
    MPI, Kubernetes or mpi4py say of the processes they started, or the environment variables JAX_COORDINATOR_ADDRESS,
    JAX_NUM_PROCESSES and JAX_PROCESS_ID; where nothing says that there are several, nothing is done. Processes exchange
    gradients through gloo on CPUs and NCCL on GPUs.

    Where another process ends, or gives no sign of life, this one ends with an error, after process 0 has saved.

    Example:
      >>> vx.distributed.initialize("10.0.0.1:1234", num_processes=2, process_id=0)  # 1 in the other

    Args:
      address: Of process 0, host:port; it listens there.
      num_processes: How many processes there are.
      process_id: Number of this one, from 0.
      local_device_ids: GPUs of this machine that this process uses; None: all, and under SLURM and MPI one.
      wait: Seconds that processes wait for each other at the start.
      patience: Seconds without a sign of life after which a process counts as dead.

    Raises:
      ValueError: An argument is out of range, or some are missing and nothing says what they are.
      RuntimeError: Something has been computed already, this was called before, or a process was not found.
    """
    number("wait", wait, above=0)
    number("patience", patience, above=0)
    address = address or os.environ.get("JAX_COORDINATOR_ADDRESS")
    num_processes, process_id = _given("NUM_PROCESSES", num_processes), _given("PROCESS_ID", process_id)
    given = {"address": address, "num_processes": num_processes, "process_id": process_id}
    missing = [name for name, value in given.items() if value is None]
    if num_processes == 1 or (len(missing) == 3 and not _is_started_by_others()):
        return
    if num_processes is not None:
        integer("num_processes", num_processes, low=1)
    if process_id is not None:
        integer("process_id", process_id, low=0, high=None if num_processes is None else num_processes - 1)
    if address is not None:
        _check_address(address)
    unknown = f"vx.distributed.initialize does not know {', '.join(missing)}: give them, or start the processes by "
    if missing and not _is_started_by_others():
        raise ValueError(f"{unknown}SLURM, MPI or Kubernetes.")
    if watched or jax.distributed.is_initialized():
        raise RuntimeError("vx.distributed.initialize was called before; a process joins the others once.")
    if backends_are_initialized():
        raise RuntimeError("vx.distributed.initialize comes first, before anything that computes with JAX.")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_recoverability", True)  # otherwise JAX would abort those that are left
    jax.config.update("jax_enable_preemption_service", False)  # it takes SIGTERM for itself
    if _TUNING not in os.environ.get("XLA_FLAGS", ""):
        # GPUs would wait for what others found of the same program, and calls of pools have other names in each.
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --{_TUNING}=false".strip()
    try:
        jax.distributed.initialize(
            address,
            num_processes,
            process_id,
            local_device_ids,
            initialization_timeout=max(int(wait), 1),
            heartbeat_timeout_seconds=max(int(patience), 1),
            shutdown_timeout_seconds=_SECONDS_TO_END,
        )
    except ValueError as error:
        raise ValueError(f"{unknown}SLURM, MPI or Kubernetes ({error})") from error
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise RuntimeError(
            f"the processes did not find each other at {address} in {wait:g} seconds: {reason}"
        ) from error

    watched.append(Peers(global_state.client, global_state.process_id, global_state.num_processes, patience))
    atexit.register(watched[-1].leave)


def _given(name: str, value: int | None) -> int | None:
    """A number as it is given, or as an environment variable has it."""
    text = os.environ.get(f"JAX_{name}")
    if value is not None or text is None:
        return value
    try:
        return int(text)
    except ValueError as error:
        raise ValueError(f"JAX_{name}={text!r} is no number.") from error


def _is_started_by_others() -> bool:
    """Whether SLURM, MPI or Kubernetes started this process as one of several."""
    found = [c for c in ClusterEnv._cluster_types if not c.opt_in_only_method and c.is_env_present()]
    return bool(found) and found[0].get_process_count() > 1


def _check_address(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 2**16:
        raise ValueError(f"address={address!r}: give host:port of process 0, such as '10.0.0.1:1234'.")
    try:
        socket.getaddrinfo(host.strip("[]"), int(port))
    except OSError as error:
        raise ValueError(f"address={address!r}: there is no machine {host} ({error}).") from error
