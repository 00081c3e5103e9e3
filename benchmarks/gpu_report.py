"""Tables in Markdown of the results of `gpu.py`.

    python benchmarks/gpu_report.py benchmarks/results/gpu_h100.json

Prints a section for `docs/results/performance.md`. Failed parts are named. Rows of failed and
absent parts are left out.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

VARIANTS = {
    "volvox": "**volvox**",
    "naive_vmap": "`jax.vmap` over plain flax",
    "read": "summing all weights once",
    "shared": "rows of one shared network",
    "low_rank": "low-rank noise, one base",
    "low_rank_20": "low-rank noise, 20 bases",
}
IMPLEMENTATIONS = ("mosaic", "xla", "ragged_dot")


def number(value: float | None) -> str:
    """Three significant digits, or nothing."""
    if value is None:
        return ""
    return f"{float(f'{value:.3g}'):,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """Lines of a table, or none without rows."""
    texts = [[cell if isinstance(cell, str) else number(cell) for cell in row] for row in rows]
    return ["", *(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *texts])] if texts else []


def populations(parts: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """(name, figures) of the loops that played."""
    found = [(name, part) for name, part in parts.items() if name.startswith("rollout") and "stepped_per_s" in part]
    found.sort(key=lambda x: x[1]["settings"]["num_envs"])
    return [(f"{x['settings']['num_envs']:,} slots, {x['settings']['noise']}", x) for _, x in found]


def learners(parts: dict[str, Any]) -> list[tuple[Any, ...]]:
    """(name, rate, share of its parts in turn, rate of PyTorch, ratio) of the learners that ran."""
    rows: list[tuple[Any, ...]] = []
    for name, title in (("ppo", "PPO"), ("ppo_bfloat16", "PPO in bfloat16"), ("a3c", "A3C")):
        if "steps_per_s" in (part := parts.get(name, {})):
            peer, ratio = part.get("torch_steps_per_s"), part.get("speedup_vs_torch")
            title += f", outputs differ by {number(part['difference'])}" if "difference" in part else ""
            rows.append((f"{title}, timesteps", part["steps_per_s"], part["fraction_of_bound"], peer, ratio))
    for name in ("td3", "sac"):
        if "updates_per_s" in (part := parts.get(name, {})):
            peer, title = part.get("torch_updates_per_s"), name.upper()
            rows.append((f"{title}, updates", part["updates_per_s"], None, peer, part.get("speedup_vs_torch")))
            rows.append((f"{title}, timesteps", part["loop_steps_per_s"], part["loop_fraction_of_bound"], None, None))
            for count, rate in part.get("many_steps_per_s", {}).items():
                rows.append((f"{title}, timesteps of {count} learners", rate, None, None, None))
    if "steps_per_s" in (part := parts.get("jax_envs", {})):
        rows.append(
            (f"PPO, {part['settings']['num_envs']:,} CartPoles on the device", part["steps_per_s"], *[None] * 3)
        )
    if "ppo" in (part := parts.get("many_learners", {})):
        name = f"PPO, timesteps of {part['ppo']['num_learners']} learners, 8 CartPoles each"
        rows.append((name, part["ppo"]["timesteps_per_s_all"], None, None, None))
    return rows


def report(result: dict[str, Any], source: str) -> list[str]:
    """Lines of the section."""
    parts = result["parts"]
    made = result["made"][-1] if isinstance(result["made"], list) else result["made"]
    lines = [f"`python benchmarks/gpu.py` ({made['date'][:10]}, commit {made['commit']}; `{source}`): one"]
    lines[0] += f" {result['device']} and {result['cpus']} cores, jax {result['jax']}."
    failed = [name for name, part in parts.items() if part.get("exit_code", 0) != 0]
    lines += [f"Failed or not begun: {', '.join(failed)}."] if failed else []
    head = ("large networks on Frostbite", "timesteps/s", "frames/s", "emulators alone", "share of them")
    head += ("networks alone", "occupancy", "plain vmap", "PyTorch")
    lines += table(head, (row_of_population(name, part) for name, part in populations(parts)))
    head = ("learner", "a second", "of its parts in turn", "PyTorch", "over PyTorch")
    lines += table(head, learners(parts))
    if "spread_ms" in (part := parts.get("forward", {})):
        spread = part["spread_ms"]
        head = (f"one timestep of {part['num_networks']:,} {part['size']} networks", "ms", "range")
        found = [(text, spread[name]) for name, text in VARIANTS.items() if name in spread]
        rows = ((text, x["median"], f"{number(x['min'])} to {number(x['max'])}") for text, x in found)
        lines += table(head, rows)
    kernels = parts.get("kernels", {})
    head = ("weights of whole networks", "computed in", "ms", "over reading them", "difference")
    rows = kernels.get("whole_network", [])
    keys = ("dtype", "computed_in", "ms", "over_reading", "difference")
    lines += table(head, ([row.get(key) for key in keys] for row in rows))
    head = ("rows and kernels", "dtype", *(f"{name}, ms" for name in IMPLEMENTATIONS), "best over a copy")
    lines += table(head, map(row_of_kernel, kernels.get("kernels", [])))
    if rows := parts.get("atari_ga", {}).get("rows"):
        keys = ("seconds", "frames", "frames_per_second", "training_best", "training_mean", "validation_mean")
        lines += table(("atari_ga", *keys), ([i, *(row.get(key) for key in keys)] for i, row in enumerate(rows)))
    return lines


def row_of_population(name: str, part: dict[str, Any]) -> list[Any]:
    rate, alone, networks = part["stepped_per_s"], part["env_steps_per_s"], part["inference_steps_per_s"]
    others = (part["occupancy"], part.get("naive_scored_per_s"), part.get("torch_steps_per_s"))
    return [name, rate, 4 * rate, alone, rate / alone, networks, *others]


def row_of_kernel(row: dict[str, Any]) -> list[Any]:
    found = [row.get(name, {}) for name in IMPLEMENTATIONS]
    times = ["failed" if "error" in x else x.get("ms") for x in found]
    best = max((x["of_copy"] for x in found if "of_copy" in x), default=None)
    return [f"{row['shape']}, {row['networks']:,} of {row['kernels']:,}", row["dtype"], *times, best]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path, help="JSON file that gpu.py wrote")
    options = parser.parse_args()
    result = json.loads(options.result.read_text())
    print("\n".join(report(result, str(options.result))))


if __name__ == "__main__":
    main()
