"""Gradients of GA3C's or Nature's network on a CPU: samples a second, one at a time of each form, in turns.

    python benchmarks/gradients.py --json
    python benchmarks/gradients.py --json --peers

- volvox: our gradients of convolutions, accumulated over micro-batches in a compiled loop, as training does it;
- volvox_alone: one batch of all, in no loop;
- lax: plain flax with automatic gradients, one batch of all, in no loop;
- lax_in_scan: the same over micro-batches in a compiled loop;
- matmul: a product of two float32 matrices `[2048, 2048]`, to compare floating-point operations a second;
- torch (with `--peers`, GA3C): PyTorch, channels last, the size of its micro-batches tuned, in a process of its own.
"""

import dataclasses
import statistics
from collections.abc import Callable
from contextlib import nullcontext
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import tyro
from parts import in_turns, machine, run_peer, show

import volvox as vx
from volvox.networks.interception import use_kernels

Flag = tyro.conf.arg
NUM_ACTIONS = 6


@dataclasses.dataclass(frozen=True)
class Options:
    """Gradients of the actor-critic's network."""

    batch: int = 320
    micro_batch: Annotated[int, Flag(help="a divisor of the batch, for the forms in a loop")] = 40
    size: Literal["small", "large", "nature"] = "small"
    repeats: int = 15
    peers: Annotated[bool, Flag(help="also measure PyTorch, which must be installed")] = False
    json: Annotated[bool, Flag(help="print one JSON object")] = False


def forms(options: Options) -> tuple[dict[str, Callable[[], Any]], float]:
    """(compiled calls that give the gradient of the same batch, floating-point operations for one sample)."""
    if options.size == "nature":
        module: Any = vx.networks.ActorCritic(NUM_ACTIONS, vx.networks.NatureTorso())
    else:
        module = vx.networks.GA3C(NUM_ACTIONS, size=options.size)
    keys = jax.random.split(jax.random.key(0), 3)
    observation = jax.random.randint(keys[0], (options.batch, 84, 84, 4), 0, 256).astype(jnp.uint8)
    action = jax.random.randint(keys[1], (options.batch,), 0, NUM_ACTIONS)
    returns = jax.random.normal(keys[2], (options.batch,))
    params = module.init(jax.random.key(1), observation[:1])

    def gradient(kernels: Callable[[], Any]):
        def loss(params, observation, action, returns):
            with kernels():
                logits, value = module.apply(params, observation)
            log_p = jax.nn.log_softmax(logits)
            advantage = returns - value
            chosen = jnp.take_along_axis(log_p, action[:, None], 1)[:, 0]
            entropy = -(log_p * jnp.exp(log_p)).sum(1)
            return (-chosen * jax.lax.stop_gradient(advantage) - 0.01 * entropy + 0.5 * advantage**2).sum()

        return jax.grad(loss)

    def in_loop(one):
        def accumulated(params, *batch):
            parts = jax.tree.map(lambda x: x.reshape(-1, options.micro_batch, *x.shape[1:]), batch)

            def add(total, part):
                return jax.tree.map(jnp.add, total, one(params, *part)), None

            return jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), parts)[0]

        return accumulated

    ours, plain = gradient(use_kernels), gradient(nullcontext)
    compiled = {
        "volvox": jax.jit(in_loop(ours)),
        "volvox_alone": jax.jit(ours),
        "lax": jax.jit(plain),
        "lax_in_scan": jax.jit(in_loop(plain)),
    }
    cost: Any = compiled["lax"].lower(params, observation, action, returns).compile().cost_analysis()
    calls = {name: lambda f=f: f(params, observation, action, returns) for name, f in compiled.items()}
    return calls, cost["flops"] / options.batch


def measure(options: Options) -> dict[str, Any]:
    """Everything; JSON values."""
    calls, flops = forms(options)
    expected = jax.tree.leaves(calls["lax"]())
    for name, call in calls.items():
        for ours, theirs in zip(jax.tree.leaves(call()), expected, strict=True):
            if not float(jnp.abs(ours - theirs).max()) <= 1e-3 * float(jnp.abs(theirs).max()):
                raise SystemExit(f"{name} and lax give different gradients; no speed is reported")
    x, product = jnp.ones((2048, 2048)), jax.jit(jnp.matmul)
    times = in_turns(calls | {"matmul": lambda: product(x, x)}, options.repeats)
    gflops = 2e-6 * 2048**3 / statistics.median(times.pop("matmul"))
    rates = {name: [1e3 * options.batch / x for x in values] for name, values in times.items()}
    figures: dict[str, Any] = {f"{name}_per_s": statistics.median(values) for name, values in rates.items()}
    figures["volvox_per_s_range"] = [min(rates["volvox"]), max(rates["volvox"])]
    figures |= {"gflops": 1e-9 * flops * figures["volvox_per_s"], "matmul_gflops": gflops}
    figures["speedup_vs_lax"] = figures["volvox_per_s"] / figures["lax_per_s"]
    figures["speedup_vs_lax_in_scan"] = figures["volvox_per_s"] / figures["lax_in_scan_per_s"]
    if options.peers:
        flags = {"gradients": options.batch, "size": options.size}
        figures["torch_per_s"] = run_peer("torch_a2c", flags)["gradients_per_s"]
        figures["speedup_vs_torch"] = figures["volvox_per_s"] / figures["torch_per_s"]
    return figures


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    if options.batch % options.micro_batch:
        raise SystemExit(f"--micro-batch {options.micro_batch} does not divide --batch {options.batch}")
    if options.peers and options.size == "nature":
        raise SystemExit("PyTorch has the networks of GA3C alone: give --size small or large with --peers")
    show(measure(options) | {"settings": dataclasses.asdict(options), **machine()}, options.json)


if __name__ == "__main__":
    main()
