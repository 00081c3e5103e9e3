"""Tables in Markdown, and a picture, of the results of `gpu.py`.

    python benchmarks/gpu_report.py benchmarks/results/gpu_h100.json --picture benchmarks/results/gpu_h100.png

Prints a section for `docs/results/performance.md`. Parts that failed or are absent are named, and their rows are left
out.
"""

import argparse
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

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
    return [(describe(part["settings"]), part) for _, part in sorted(found, key=lambda x: x[1]["settings"]["num_envs"])]


def describe(settings: dict[str, Any]) -> str:
    notes = [settings["noise"], *["one group"] * (settings["groups"] == 1), *["driven from Python"] * settings["host"]]
    return f"{settings['num_envs']:,} slots, {', '.join(notes)}"


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


def last_made(result: dict[str, Any]) -> dict[str, Any]:
    """The commit and the date of the last measurement; files that were put together have several."""
    return result["made"][-1] if isinstance(result["made"], list) else result["made"]


def variants(spread: dict[str, Any]) -> list[tuple[str, dict[str, float]]]:
    """(description, milliseconds) of the ways of a forward pass that were measured."""
    return [(text, spread[name]) for name, text in VARIANTS.items() if name in spread]


def report(result: dict[str, Any], source: str) -> list[str]:
    """Lines of the section."""
    parts = result["parts"]
    made = last_made(result)
    lines = [f"`python benchmarks/gpu.py` ({made['date'][:10]}, commit {made['commit']}; `{source}`): one"]
    lines[0] += f" {result['device']} and {result['cpus']} cores, jax {result['jax']}."
    failed = [name for name, part in parts.items() if part.get("exit_code", 0) != 0]
    lines += [f"Failed or not begun: {', '.join(failed)}."] if failed else []
    head = ("large networks on Frostbite", "timesteps/s", "frames/s", "emulators alone", "share of them")
    head += ("networks alone", "device idle", "occupancy", "plain vmap", "PyTorch")
    lines += table(head, (row_of_population(name, part) for name, part in populations(parts)))
    head = ("learner", "a second", "of its parts in turn", "PyTorch", "over PyTorch")
    lines += table(head, learners(parts))
    if "spread_ms" in (part := parts.get("forward", {})):
        spread = part["spread_ms"]
        head = (f"one timestep of {part['num_networks']:,} {part['size']} networks", "ms", "range")
        rows = ((text, x["median"], f"{number(x['min'])} to {number(x['max'])}") for text, x in variants(spread))
        lines += table(head, rows)
    kernels = parts.get("kernels", {})
    head = ("weights of whole networks", "computed in", "ms", "over reading them", "difference")
    rows = kernels.get("whole_network", [])
    keys = ("dtype", "computed_in", "ms", "over_reading", "difference")
    lines += table(head, ([row.get(key) for key in keys] for row in rows))
    head = ("rows and kernels", "dtype", *(f"{name}, ms" for name in IMPLEMENTATIONS), "best over a copy")
    lines += table(head, map(row_of_kernel, kernels.get("kernels", [])))
    for name in ("atari_ga", "atari_es", "atari_pqn"):
        if rows := parts.get(name, {}).get("rows"):
            keys = ("seconds", "frames", "frames_per_second", "training_best", "training_mean", "validation_mean")
            lines += table((name, *keys), ([i, *(row.get(key) for key in keys)] for i, row in enumerate(rows)))
    return lines


def row_of_population(name: str, part: dict[str, Any]) -> list[Any]:
    rate, alone, networks = part["stepped_per_s"], part["env_steps_per_s"], part["inference_steps_per_s"]
    others = (part["occupancy"], part.get("naive_scored_per_s"), part.get("torch_steps_per_s"))
    return [name, rate, 4 * rate, alone, rate / alone, networks, part.get("device_idle"), *others]


def row_of_kernel(row: dict[str, Any]) -> list[Any]:
    found = [row.get(name, {}) for name in IMPLEMENTATIONS]
    times = ["failed" if "error" in x else x.get("ms") for x in found]
    best = max((x["of_copy"] for x in found if "of_copy" in x), default=None)
    return [f"{row['shape']}, {row['networks']:,} of {row['kernels']:,}", row["dtype"], *times, best]


def picture(result: dict[str, Any], path: Path) -> None:
    """Draws bars of the populations, learners and forward passes that were measured."""
    parts, panels = result["parts"], {}
    bars = [(name, part["stepped_per_s"], part["env_steps_per_s"]) for name, part in populations(parts)]
    panels["timesteps a second; line: emulators alone"] = bars
    panels["a second; line: PyTorch"] = [(name, rate, peer) for name, rate, _, peer, _ in learners(parts)]
    found = variants(parts.get("forward", {}).get("spread_ms", {}))
    panels["ms of one timestep of all networks"] = [(re.sub("[*`]", "", text), x["median"], None) for text, x in found]
    panels = {title: rows for title, rows in panels.items() if rows}
    if not panels:
        return
    heights = [len(rows) for rows in panels.values()]
    figure, all_axes = plt.subplots(
        len(panels), figsize=(8, 1.2 * len(panels) + 0.3 * sum(heights)), height_ratios=heights, squeeze=False
    )
    for axes, (title, rows) in zip(all_axes[:, 0], panels.items(), strict=True):
        names, values, marks = zip(*rows[::-1], strict=True)
        axes.bar_label(axes.barh(names, values, color="C0"), [f" {number(value)}" for value in values])
        for i, mark in enumerate(marks):
            axes.plot([mark] * 2 if mark else [], [i - 0.4, i + 0.4] if mark else [], color="C1", linewidth=3)
        axes.set_title(title, fontsize=10)
        axes.margins(x=0.15)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{result['device']}, {last_made(result)['date'][:10]}", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path, help="JSON file that gpu.py wrote")
    parser.add_argument("--picture", type=Path, help="PNG file to write")
    options = parser.parse_args()
    result = json.loads(options.result.read_text())
    print("\n".join(report(result, str(options.result))))
    if options.picture:
        picture(result, options.picture)


if __name__ == "__main__":
    main()
