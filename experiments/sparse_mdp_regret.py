"""Regret of explore-then-commit by Lasso fitted Q-iteration (Hao et al. 2020, arXiv 2011.04018).

    python experiments/sparse_mdp_regret.py --run-dir runs/regret                           # against N
    python experiments/sparse_mdp_regret.py --episodes 8_000 --sparsities 1 2 4 8 --run-dir runs/regret_s
    python experiments/sparse_mdp_regret.py --model hidden --episodes 500 1_000 2_000 4_000 --run-dir runs/hidden

costly: the worst regret over a grid of signals, because the bound is one for all models. hidden: the model in which one
action has to be found first, with and without a policy that knows it. Writes `regret.json`, with the slope of the
worst regret against N or s in logarithms where there are several of them.
"""

import dataclasses
import itertools
import json
import sys
from typing import Any, Literal

import jax
import numpy as np
import tyro
from launch import exit_code
from scores import made_with

import volvox as vx
from volvox._checks import integers
from volvox.envs.linear_mdps import costly_exploration, hidden_laboratory
from volvox.report.files import write_file
from volvox.runs.train import run_path

_HORIZON = 3  # timesteps of an episode, of both models


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Regret in one kind of model.

    Attributes:
      model: The kind.
      episodes: N, one or several; each more than its exploration.
      sparsities: s, one or several; only of costly models.
      dimension: d, above all N.
      exponent: Exploration is (s M)^(2/3) (N / M)^exponent episodes, where M is the geometric mean of all N. The hidden
        model takes s = 2.
      signals: Number of signals: 1 / (2 s), and each the fourth root of 2 smaller than the one before; only of costly
        models.
      seeds: Runs of each model. There are no directories `seed-N`: one file has the regrets of all seeds.
      run_dir: Where the result goes.
    """

    model: Literal["costly", "hidden"] = "costly"
    episodes: tuple[int, ...] = (1_000, 2_000, 4_000, 8_000, 16_000)
    sparsities: tuple[int, ...] = (2,)
    dimension: int = 20_000
    exponent: float = 2 / 3
    signals: int = 9
    seeds: int = 10
    run_dir: str = "runs/regret"

    def __post_init__(self):
        integers(self, "signals", "seeds", "dimension", low=1)
        for name in ("episodes", "sparsities"):
            if not (values := getattr(self, name)) or min(values) < 1:
                raise ValueError(f"{name}={values}: give one or several numbers of at least 1.")
        if self.model == "hidden" and self.sparsities != (2,):
            raise ValueError(f"sparsities={self.sparsities} belong to model='costly'; leave them out.")
        for n, s in itertools.product(self.episodes, self.sparsities):
            if n >= self.dimension:
                raise ValueError(f"episodes={n} must be fewer than dimension={self.dimension}; give a larger one.")
            if (explored := self.exploration(n, s)) >= n:
                raise ValueError(
                    f"episodes={n}: with s={s} exploration alone takes {explored}; give more episodes, or a smaller s."
                )

    def exploration(self, n: int, s: int) -> int:
        """Episodes of exploration, of N: a multiple of the horizon."""
        middle = np.exp(np.mean(np.log(self.episodes)))
        wanted = max(round((s * middle) ** (2 / 3) * (n / middle) ** self.exponent), 1)
        return -(-wanted // _HORIZON) * _HORIZON


def regrets(settings: Settings, n: int, s: int) -> dict[str, list[float]]:
    """Regrets of N episodes, one a seed, for each signal, or with the door known and unknown."""
    d, learner = settings.dimension, vx.learners.LassoFQI(exploration_episodes=settings.exploration(n, s))

    def costly(key, signal):
        model = costly_exploration(dimension=d, sparsity=s, signal=signal, horizon=_HORIZON)
        return vx.learners.explore_then_commit(learner, model, key, n).regret

    def hidden(key, known):
        key, of_door = jax.random.split(key)
        door = jax.random.randint(of_door, (), 0, d - 2)
        model = hidden_laboratory(dimension=d, door=door, horizon=_HORIZON, door_known=known)
        return vx.learners.explore_then_commit(learner, model, key, n).regret

    if settings.model == "costly":
        signals = 2 ** (-np.arange(settings.signals) / 4) / (2 * s)
        run, cases = jax.jit(costly), {f"{x:.4f}": jax.numpy.float32(x) for x in signals}
    else:
        run, cases = jax.jit(hidden, static_argnums=1), {"known": True, "unknown": False}
    keys = [jax.random.key(i) for i in range(settings.seeds)]
    return {name: [round(float(run(key, case)), 1) for key in keys] for name, case in cases.items()}


def slope(points: list[dict[str, Any]], along: str, cases: tuple[str, ...] | None = None) -> dict[str, Any]:
    """The slope of the worst regret in logarithms, with a 95% bootstrap interval that resamples seeds.

    A seed is the same at all points, which makes their regrets alike, so a resample has the same seeds at each of them.
    With fewer than three seeds there is no interval. Where a point has no positive regret there is no slope, and where
    that is so in a resample there is no interval.

    Args:
      points: As in `regret.json`.
      along: N or s.
      cases: Names of the cases of which the worst is taken; default: all.
    """
    # Of each point: regrets [cases, seeds].
    found = [np.array([x for name, x in p["regrets"].items() if cases is None or name in cases]) for p in points]
    logs, rng = np.log([p[along] for p in points]), np.random.default_rng(0)

    def fitted(tables: list[np.ndarray]) -> float | None:
        worst = [table.mean(axis=1).max() for table in tables]
        return None if min(worst) <= 0 else float(np.polyfit(logs, np.log(worst), 1)[0])

    if (value := fitted(found)) is None:
        return {"slope": None, "interval_95": None}
    interval, (seeds,) = None, {table.shape[1] for table in found}
    resamples = [fitted([x[:, rows] for x in found]) for rows in rng.integers(seeds, size=(2_000, seeds))]
    drawn = [slope for slope in resamples if slope is not None]
    if seeds >= 3 and len(drawn) == len(resamples):
        interval = [round(float(x), 3) for x in np.percentile(drawn, [2.5, 97.5])]
    return {"slope": round(value, 3), "interval_95": interval}


def slopes(points: list[dict[str, Any]]) -> dict[str, Any]:
    """Slopes against N or s, whichever there are several of, and in the hidden model for each case by itself.

    Where there are several of both, or one of each, there is none.
    """
    along = [name for name in ("N", "s") if len({p[name] for p in points}) > 1]
    if len(along) != 1:
        return {}
    if "known" not in points[0]["regrets"]:
        return {along[0]: slope(points, along[0])}
    return {f"{along[0]}, {case}": slope(points, along[0], (case,)) for case in points[0]["regrets"]}


def main() -> int:
    settings = tyro.cli(Settings, description=__doc__)
    folder, found, fitted = run_path(settings.run_dir), [], {}
    if (folder / "regret.json").exists():
        raise FileExistsError(f"{folder / 'regret.json'} is there already: give another --run-dir, or remove it")
    folder.mkdir(parents=True, exist_ok=True)
    for n in settings.episodes:
        for s in settings.sparsities:
            found.append({"N": n, "s": s, "regrets": regrets(settings, n, s)})
            print(n, s, {name: round(np.mean(x)) for name, x in found[-1]["regrets"].items()}, flush=True)
            fitted = slopes(found)
            text = json.dumps({**made_with(settings), "points": found, "slopes": fitted})
            write_file(folder / "regret.json", text + "\n")
    print(fitted)
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
