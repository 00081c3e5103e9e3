"""Where populations are played, as settings."""

import dataclasses
import importlib.util
import os
import socket
from typing import Any, Literal

from volvox._checks import integer, number
from volvox._parts import env_of, import_paths, network_of
from volvox._settings import CannotRebuildError, rebuild

from volvox.types import Config

_SECONDS_TO_ANSWER = 5.0
_GREETING, _ANSWER = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)), b"\x04"
"""How a connection to a server of gRPC begins, with a frame of settings, and the kind of the frame that answers."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ray:  # noqa: N801  # a record of settings that reads as a call
    """Plays populations on actors of Ray, each on a machine or a GPU of its own.

    Every actor makes environments, slots and the noise table for itself, from import paths and settings; so network and
    environment must be importable there. It takes as many environments as `env.num_envs` says. On environments of pure
    functions results are, bit for bit, those of one process, on machines of one kind. On envpool no-op starts depend on
    the actor that plays (docs/scaling.md).

    Actors may die, hang, or come later: what they played is given to others.

    Example:
      >>> workers = vx.distributed.ray(num_actors="nodes")
      >>> algorithm = vx.evolve(vx.GA(population_size=1_000), network, env, workers=workers)

    Attributes:
      num_actors: How many: `"nodes"`, one on each machine of the cluster that has CPUs, those that join later included
        (playing begins 30 seconds after the first is ready, at the latest); `"gpus"`, one for each GPU; or a number. 1
        or None plays in this process, without Ray.
      num_cpus_per_actor: CPUs that Ray reserves for an actor, and cores that it keeps to; None: all of the machine with
        `"nodes"`, otherwise 1.
      num_gpus_per_actor: GPUs that Ray reserves for an actor; with `"gpus"` always 1.
      address: Of the cluster, such as `"10.0.0.1:6379"`; None: what `RAY_ADDRESS` says, the cluster that runs on this
        machine, or one of this machine alone that is begun.
      wait: Seconds that may pass without any actor, at the start and later, before the run ends with a checkpoint and
        an error.
      patience: Seconds without an answer, or without a timestep that was played, after which an actor is replaced; what
        it plays for the first time, which is compiled, has `wait` seconds for its first timesteps.
      duplicates: Towards the end of a phase, give portions that are being played to idle actors too, and take the first
        answer. Only where episodes are the same on every actor, which are those of pure functions.
    """

    num_actors: int | Literal["nodes", "gpus"] | None = "nodes"
    num_cpus_per_actor: int | None = None
    num_gpus_per_actor: float = 0
    address: str | None = None
    wait: float = 600.0
    patience: float = 60.0
    duplicates: bool = True

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
        number("patience", self.patience, above=0)
        if self.address is not None and not isinstance(self.address, str):
            raise ValueError(f"address={self.address!r}: give text, such as '10.0.0.1:6379'.")

    def player(self, config: Config, num_slots: int, chunk_seconds: float) -> "Any":
        """See `volvox.evolution.pools.Workers`."""
        if self.num_actors in (None, 1):
            return None
        if importlib.util.find_spec("ray") is None:
            raise ImportError(
                "workers=vx.distributed.ray(...) needs Ray, which is not installed: pip install 'volvox[ray]'"
            )
        _check_parts(config)
        _check_address(self.address)
        from volvox.distributed.player import RayPlayer

        return RayPlayer(self, config, num_slots, chunk_seconds)


def _check_parts(config: Config) -> None:
    """Raises ValueError where an actor could not make network or environment."""
    for path in import_paths(config):
        if path.startswith("__main__:") or "<" in path:
            raise ValueError(
                f"{path} is defined in the script or notebook that runs, and actors cannot import it: move it to the "
                "top of a module (a .py file beside the script will do), and import it from there"
            )
    try:
        # A reference batch would be played, which takes seconds.
        network = {name: value for name, value in config["network"].items() if name != "reference"}
        network_of(network, env_of(config["env"]))
        rebuild(config["noise"], place="noise")
        rebuild(config["behavior"], place="behavior")
    except CannotRebuildError as error:
        raise ValueError(f"actors make their parts from settings, and cannot: {error}") from error


def check_connected(address: str | None, connected: str) -> None:
    """Raises ValueError where this process is connected to another cluster than the one that is asked for.

    Args:
      address: That is asked for.
      connected: Address of the cluster to which it is connected.
    """
    if address in (None, "auto"):
        return
    if address == "local" or _numeric(address) != _numeric(connected):
        raise ValueError(
            f"address={address!r}: this process is connected to the cluster at {connected} already; leave address out, "
            "or call ray.shutdown() before"
        )


def _numeric(address: str) -> tuple[str, str]:
    """The numbers of an address; those of this machine are one."""
    host, _, port = address.rpartition(":")
    try:
        host = socket.gethostbyname(host)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as found:
            found.bind((host, 0))  # only this machine's own addresses can be taken
        return "here", port
    except OSError:
        return host, port


def _check_address(address: str | None) -> None:
    """Raises ValueError where no cluster answers at an address."""
    if address in (None, "auto", "local"):
        return
    if address.startswith("ray://"):
        raise ValueError(
            f"address={address!r} is Ray's client, through which every byte would pass twice: start the script on a "
            "machine of the cluster, with address='auto' or the address of its head, host:6379"
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"address={address!r}: give host:port, such as '10.0.0.1:6379', or 'auto'.")
    try:
        with socket.create_connection((host, int(port)), _SECONDS_TO_ANSWER) as connection:
            # Ray itself would go on asking for minutes.
            connection.sendall(_GREETING)
            if os.environ.get("RAY_USE_TLS", "0") == "0" and connection.recv(9)[3:4] != _ANSWER:
                raise OSError("a program answers that is not Ray's")
    except OSError as error:
        raise ValueError(
            f"address={address!r}: no cluster answers there ({error}); `ray status` on its head shows the address, and "
            "`ray start --head` begins one"
        ) from error
