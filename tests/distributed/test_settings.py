"""What is wrong is said in one line, before anything is started."""

import importlib.util
import socket
import sys
import threading

import jax.numpy as jnp
import probes
import pytest

import volvox as vx
from volvox import distributed, networks
from volvox.distributed import player
from volvox.envs import from_functions

GA = vx.GA(population_size=8, num_parents=2, num_elite_candidates=2, num_validation_episodes=1)


needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")


def evolve(workers, network=None, env=None):
    env = probes.countdown(num_envs=4) if env is None else env
    return vx.evolve(GA, networks.MLP(2, (4,)) if network is None else network, env, workers=workers)


@pytest.mark.parametrize("workers", [None, 1, distributed.ray(num_actors=1), distributed.ray(num_actors=None)])
def test_one_is_this_process(workers, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert evolve(workers).config == evolve(None).config


def test_ray_is_imported_only_where_it_plays():
    import subprocess

    code = "import sys, volvox as vx; vx.distributed.ray(); sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_actors": "machines"}, "num_actors='machines': give a number, 'nodes' or 'gpus'"),
        ({"num_actors": 0}, "num_actors must be an integer of at least 1, got 0"),
        ({"num_cpus_per_actor": 0}, "num_cpus_per_actor must be an integer of at least 1"),
        ({"num_gpus_per_actor": -1}, "num_gpus_per_actor=-1"),
        ({"wait": 0}, "wait=0"),
        ({"patience": float("inf")}, "patience=inf"),
        ({"address": 6379}, "address=6379: give text"),
    ],
)
def test_settings_out_of_range(settings, message):
    with pytest.raises(ValueError, match=message):
        distributed.ray(**settings)


@pytest.mark.parametrize("workers", [3, "nodes", distributed.ray])
def test_other_workers(workers):
    with pytest.raises(TypeError, match=r"workers=.*: give vx\.distributed\.ray"):
        evolve(workers)


def test_ray_is_not_installed(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'volvox\[ray\]'"):
        evolve(distributed.ray())


@needs_ray
@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:1", "address='127.0.0.1:1': no cluster answers there"),
        ("somewhere", "give host:port"),
        ("ray://127.0.0.1:10001", "is Ray's client"),
    ],
)
def test_wrong_address(address, message):
    with pytest.raises(ValueError, match=message):
        evolve(distributed.ray(address=address))


@needs_ray
@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n", b""])
def test_another_program_at_the_address(answer):
    """Ray's dashboard, for example; Ray would ask it for minutes."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            with server.accept()[0] as connection:
                connection.recv(100)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        message = r"no cluster answers there \(a program answers that is not Ray's\); `ray status`"
        with pytest.raises(ValueError, match=message):
            evolve(distributed.ray(address=f"127.0.0.1:{server.getsockname()[1]}"))
        thread.join()


class Notebook(networks.MLP):
    """As if it were of a script."""


Notebook.__module__ = "__main__"


@needs_ray
def test_a_network_of_the_script():
    with pytest.raises(ValueError, match=r"__main__:Notebook is defined in the script or notebook that runs"):
        evolve(distributed.ray(), network=Notebook(2))


@needs_ray
def test_an_environment_of_the_script():
    env = from_functions(
        lambda key: jnp.float32(0),
        lambda state, action, key: (state, 1.0, True),
        lambda state: state[None],
        name="local",
        num_envs=4,
        max_episode_steps=2,
        num_actions=2,
    )
    with pytest.raises(ValueError, match="actors cannot import it: move it to the top of a module"):
        evolve(distributed.ray(), env=env)


@needs_ray
def test_an_environment_without_its_call():
    env = probes.countdown(num_envs=4)
    env = env._replace(config={name: value for name, value in env.config.items() if name != "made_by"})
    with pytest.raises(ValueError, match=r"a function that volvox\.recorded does not mark"):
        evolve(distributed.ray(), env=env)


def test_actors_show_progress_often_enough_to_count_as_alive():
    """What they played is counted at the end of a chunk, so one longer than their patience would end them."""
    for chunk_seconds, told in ((90.0, 0.5), (0.1, 0.1)):
        one = player.RayPlayer(distributed.ray(patience=2.0), {}, 4, chunk_seconds)
        assert one._actors._given[1:] == (4, 4 * 4, told)
        one.close()
