"""How fast PPO or PQN plays and learns, against the bound of its parts in turn, and beside PyTorch.

    python benchmarks/ppo.py --json
    python benchmarks/ppo.py --preset mujoco --task HalfCheetah-v4 --num-envs 8 --groups 2 --json
    python benchmarks/ppo.py --json --peers
    python benchmarks/ppo.py --json --peers --preset pqn

One run prints: emulators alone, the network acting alone, learning alone, the bound the three make in turn, and the
whole loop. With `--peers` also PyTorch's loop on the same emulators, of which the installation is described in
`peers/torch_ppo.py`; loop and peer are measured in turns, and the figures are medians.
"""

import dataclasses
import statistics
import sys
import time
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import tyro
from parts import env_steps_per_s, inference_steps_per_s, machine, repeatedly, run_peer, show

import volvox as vx
from volvox.learners import Turn

Flag = tyro.conf.arg


@dataclasses.dataclass(frozen=True)
class Options:
    """The benchmark of PPO and PQN."""

    preset: Annotated[Literal["atari", "mujoco", "pqn"], Flag(help="pqn: CleanRL's PQN for Atari")] = "atari"
    task: Annotated[str, Flag(help="game or MuJoCo task")] = "Pong"
    num_envs: int = 8
    groups: int = 2
    lag: Annotated[int | None, Flag(help="default: the preset's own")] = None
    dtype: Annotated[Literal["float32", "bfloat16"], Flag(help="in which the layers of images compute")] = "float32"
    micro_batch: Annotated[int | None, Flag(help="timesteps of a group learned at once; default: PPO's own")] = None
    seconds: Annotated[float, Flag(help="length of each measurement")] = 15.0
    turns: Annotated[int, Flag(help="how often loop and peer are measured")] = 3
    seed: int = 0
    peers: Annotated[bool, Flag(help="also measure PyTorch, which must be installed")] = False
    python: Annotated[str, Flag(help="Python that has torch and envpool, for the peer")] = sys.executable
    json: Annotated[bool, Flag(help="print one JSON object")] = False


def make(options: Options) -> tuple[vx.Env, Any, vx.PPO | vx.PQN]:
    """Environments, flax module and settings."""
    sizes: Any = {"num_envs": options.num_envs, "groups": options.groups}
    changes = {"micro_batch": options.micro_batch, "anneal_timesteps": None}
    changes |= {} if options.lag is None else {"lag": options.lag}
    if options.preset == "mujoco":
        env = vx.envs.mujoco(options.task, **sizes)
        settings = dataclasses.replace(vx.PPO.mujoco(), rounds_per_iteration=1, **changes)
        return env, vx.networks.GaussianMLP(env.spec.num_outputs), settings
    env = vx.envs.atari(options.task, **sizes)
    pqn, dtype = options.preset == "pqn", None if options.dtype == "float32" else jnp.dtype(options.dtype)
    torso = vx.networks.NatureTorso(dtype=dtype, layer_norm=pqn)
    network = (vx.networks.QValues if pqn else vx.networks.ActorCritic)(env.spec.num_outputs, torso)
    settings = vx.PQN.cleanrl() if pqn else vx.PPO.atari()
    return env, network, dataclasses.replace(settings, rounds_per_iteration=2, **changes)


def train_steps_per_s(learner: Any, env: vx.Env, settings: vx.PPO | vx.PQN, seconds: float) -> float:
    """Learning alone: advantages, shuffles and all updates of a round, inside one compiled loop."""
    collected, learning = learner.init(jax.random.key(0))
    turn = Turn(group=0, round=jnp.int32(1), beat=jnp.int32(0), mean_return=jnp.float32(0))

    def fill(data: Any) -> Any:
        observation, valid = data.ring.observation, data.ring.valid | True
        noise = jax.random.uniform(jax.random.key(1), observation.shape, maxval=255).astype(observation.dtype)
        return data._replace(ring=data.ring._replace(observation=noise, valid=valid))

    collected = collected._replace(collectors=tuple(map(fill, collected.collectors)))

    @jax.jit
    def round_(collected, learning):
        return learner.learn(collected, learning, jax.random.key(2), turn, jnp.int32(0), jnp.int32(learner.num_updates))

    return settings.segment_length * env.num_envs * repeatedly(lambda: round_(collected, learning), seconds)


def difference(module: Any, env: vx.Env) -> float:
    """The largest difference of the outputs from those in single precision, over the largest output."""
    frames = jax.random.randint(jax.random.key(1), (256, *env.spec.observation_shape), 0, 256).astype(jnp.uint8)
    params = module.init(jax.random.key(0), frames)
    single = module.clone(torso=module.torso.clone(dtype=None))
    outputs = [jax.tree.leaves(jax.jit(m.apply)(params, frames)) for m in (module, single)]
    found, wanted = (jnp.concatenate([x.reshape(len(frames), -1) for x in each], axis=1) for each in outputs)
    return float(jnp.abs(found - wanted).max() / jnp.abs(wanted).max())


class Loop:
    """The algorithm as `train` runs it, compilation not counted."""

    def __init__(self, algorithm: vx.Algorithm, settings: vx.PPO | vx.PQN, env: vx.Env, seed: int):
        self.algorithm, self.steps = algorithm, settings.segment_length * env.num_envs * settings.rounds_per_iteration
        self.state = algorithm.init(jax.random.key(seed))
        self.state, self.row = algorithm.step(self.state)

    def measure(self, seconds: float) -> float:
        """Timesteps learned from a second."""
        began, iterations = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            self.state, self.row = self.algorithm.step(self.state)
            iterations += 1
        return iterations * self.steps / (time.perf_counter() - began)


def peer(options: Options, settings: vx.PPO | vx.PQN, wait: str) -> float:
    """Timesteps a second of PyTorch, whose threads wait actively or passively for each other."""
    flags = {"task": options.task, "num-envs": options.num_envs, "seconds": options.seconds}
    flags |= {"preset": options.preset} if options.preset != "pqn" else {"trace-decay": settings.trace_decay}
    flags |= {"segment-length": settings.segment_length, "num-epochs": settings.num_epochs}
    flags |= {"num-minibatches": settings.num_minibatches}
    return run_peer(
        "torch_pqn" if options.preset == "pqn" else "torch_ppo", flags, options.python, OMP_WAIT_POLICY=wait
    )["steps_per_s"]


def measure(options: Options) -> dict[str, Any]:
    """All figures in one run."""
    env, module, settings = make(options)
    learner: Any = settings.bind(module, env)
    loop = Loop(vx.learn(settings, module, env), settings, env, options.seed)
    parts, rates, peers, bounds, waits = options.seconds / 3, [], [], [], ("active", "passive")
    for _ in range(options.turns):
        rates.append(loop.measure(options.seconds))
        alone = (
            env_steps_per_s(env.make(options.seed), parts),
            inference_steps_per_s(learner.policy, env, parts),
            train_steps_per_s(learner, env, settings, parts),
        )
        bounds.append((1 / sum(1 / rate for rate in alone), *alone))
        if options.peers:  # the first turn finds how PyTorch's threads had best wait
            found = {wait: peer(options, settings, wait) for wait in waits}
            waits = (max(found, key=lambda wait: found[wait]),)
            peers.append(found[waits[0]])
    loop.algorithm.close()
    bound, *alone = (statistics.median(column) for column in zip(*bounds, strict=True))
    rate = statistics.median(rates)
    names = ("env_steps_per_s", "inference_steps_per_s", "train_steps_per_s")
    figures = {
        **dict(zip(names, alone, strict=True)),
        "bound_steps_per_s": bound,
        "steps_per_s": rate,
        "fraction_of_bound": statistics.median(r / b for r, (b, *_) in zip(rates, bounds, strict=True)),
        "all_steps_per_s": rates,
        "lag_mean": loop.row["lag_mean"],
    }
    if peers:
        ratios = [ours / theirs for ours, theirs in zip(rates, peers, strict=True)]
        figures |= {"torch_steps_per_s": statistics.median(peers), "all_torch_steps_per_s": peers}
        figures |= {"speedup_vs_torch": statistics.median(ratios), "torch_waits": waits[0]}
    if options.dtype != "float32":
        figures["difference"] = difference(module, env)
    return figures | {"learner": repr(settings), "micro_batch": learner.micro_batch}


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    if options.dtype != "float32" and options.preset == "mujoco":
        raise SystemExit("--dtype is for images: leave it out with --preset mujoco")
    figures = measure(options) | {"settings": dataclasses.asdict(options), **machine()}
    show(figures, options.json)


if __name__ == "__main__":
    main()
