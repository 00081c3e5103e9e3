"""Runs: the result of training, or of loading a run directory, and everything that can be done with it.

run = vx.load("runs/frostbite")
print(run.evaluate(num_episodes=30))
run = run.resume(steps=200)
act = run.actor()
"""

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import gymnasium
import jax
import jax.numpy as jnp
from flax import linen as nn

from volvox._checks import integer
from volvox.report import html, plots, video
from volvox.report.files import ELITE, METRICS, PLOT, VIDEO, Row, read_config, read_metrics
from volvox.report.metrics import atari_scores, of_learner
from volvox.rollout import scoring
from volvox.rollout.scoring import Actor, Protocol, Score, reference_batch
from volvox.runs.config import differences, from_json, to_json
from volvox.runs.directory import all_fail_together, change_settings, read_run, saved_key
from volvox.runs.export import export, is_exported, load_exported
from volvox.types import Algorithm, ArrayTree, Env, Genotype, pick

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Which = Literal["best", "last"]
_GENOTYPES = ("volvox.networks.genotype", "volvox.networks.genotype_from_functions")
_LAYOUT = ("num_envs", "groups", "threads")
"""Arguments of an environment that do not change its episodes."""


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Run:
    """A run of `volvox.train`, up to its last completed step.

        run = vx.train(algorithm, steps=10, run_dir="runs/a")
        run.plot()
        run.watch()
        print(run.evaluate())

    Attributes:
      algorithm: The algorithm.
      state: The algorithm's state; None if the run was loaded from a directory without checkpoints.
      metrics: One row for each completed step, including those before a resume.
      run_dir: The run directory, if there is one.
      interrupted: Whether a signal (Ctrl-C, SIGTERM) ended the run early; None if the run was loaded.
      exit_code: Exit code for a script, `sys.exit(run.exit_code)`: 0, or 128 plus the signal's number.
      elite: Variables of the elite, if the run was loaded from `elite.json` without a checkpoint.
    """

    algorithm: Algorithm
    state: Any
    metrics: list[Row]
    run_dir: Path | None
    interrupted: bool | None = False
    exit_code: int = 0
    elite: ArrayTree | None = None

    def __repr__(self) -> str:
        directory = "" if self.run_dir is None else f", run_dir={str(self.run_dir)!r}"
        return f"Run({self.algorithm.env.spec.name!r}, {self.algorithm.step_name}s={len(self.metrics)}{directory})"

    def variables(self, which: Which = "best") -> ArrayTree:
        """Returns the variables that `algorithm.policy.apply` takes.

        Args:
          which: "best": the best policy so far; the last one if nothing ranks them (learners without `evaluate_every`).
            "last": the last policy, which is the same if the algorithm keeps only one. Of several learners both are of
            the best; see `learner`.

        Raises:
          ValueError: `which` has another value, or the run directory holds neither a checkpoint nor an elite.
        """
        if which not in ("best", "last"):
            raise ValueError(f"which={which!r}: give 'best' or 'last'")
        if self.state is None:
            if self.elite is None:
                raise ValueError(f"{self.run_dir} holds neither a checkpoint nor elite.json, so there is no policy")
            return self.elite
        last = self.algorithm.last_variables if which == "last" else None
        return (last or self.algorithm.variables)(self.state)

    def learner(self, i: int) -> "Run":
        """Returns one of several learners: a run without a directory, whose policy is the latest policy of learner `i`.

            run = vx.train(vx.learn(vx.PPO(), network, env, num_learners=4), steps=10)
            run.learner(2).evaluate()

        Raises:
          ValueError: There is no such learner.
        """
        learners = self.algorithm.learners
        if self.state is None or i not in range(len(learners)):
            raise ValueError(f"i={i!r}: this run has {len(learners) if self.state is not None else 0} learners")
        algorithm, metrics, config = self.algorithm, self.metrics, self.algorithm.config
        algorithm = algorithm._replace(variables=learners[i], last_variables=None, learners=(learners[i],))
        if len(learners) > 1:
            metrics = of_learner(metrics, i)
            if isinstance(settings := config.get("settings"), Sequence):  # policies of PQN differ in ε
                algorithm = algorithm._replace(policy=settings[i].bind(config["network"], algorithm.env).policy)
        return dataclasses.replace(self, algorithm=algorithm, metrics=metrics, run_dir=None)

    def evaluate(
        self,
        num_episodes: int | None = None,
        *,
        which: Which = "best",
        protocol: Protocol | None = None,
        num_envs: int | None = None,
        sampled: bool = False,
        seed: int = scoring.UNUSED_SEED,
    ) -> Score:
        """Scores the policy on whole episodes; see `volvox.play`.

        Args:
          num_episodes: Number of episodes; default 100, or one for each no-op start with the protocol "exact".
          which: The best policy so far, or the last; see `variables`.
          protocol: "sticky", "exact" or "fresh"; see `volvox.play`.
          num_envs: Environments that exist at a time; see `volvox.play`.
          sampled: Draw actions instead of taking the likeliest (PQN: with the last ε, of the first learner's settings).
          seed: Seed of environments and actions. Training is unlikely to use the default.

        Raises:
          ValueError: There is no policy, or `volvox.play` refuses an argument.
        """
        options = {"protocol": protocol, "num_episodes": num_episodes, "num_envs": num_envs}
        played = (self.algorithm.env, self.algorithm.policy, self.variables(which))
        return scoring.play(*played, sampled=sampled, seed=seed, **options)

    def actor(self, which: Which = "best") -> Actor:
        """Returns the policy as a function from observations to actions, both NumPy arrays; see `volvox.Actor`."""
        return Actor(self.algorithm.policy, self.variables(which), self.algorithm.env.spec)

    def resume(self, *, steps: int | None = None, changes: Mapping[str, Any] | None = None, **options: Any) -> "Run":
        """Continues the run in its directory.

            run = run.resume(steps=200, changes={"learning_rate": 1e-4})

        Args:
          steps: Steps of the whole run, including completed ones.
          changes: New values for fields of the learner's or the strategy's settings. `config.json` records them.
          **options: Further arguments of `volvox.train`, such as `stop_after`.

        Returns:
          The continued run. This object does not change.

        Raises:
          ValueError: There is no run directory, no such setting, a setting changes the shapes of the state, or
            `volvox.train` refuses an argument.
        """
        from volvox.runs.train import train

        directory, algorithm = self._directory("resume"), self.algorithm
        config = read_config(directory)
        if changes:
            algorithm = _with_settings(algorithm, changes)
            read_run(directory, algorithm, config)  # raises ValueError if the state would not fit
            agree = algorithm.max_over_processes or (lambda number: number)
            agree(0)  # all processes have read the run
            with all_fail_together(agree):
                if jax.process_index() == 0:
                    change_settings(directory, algorithm, changes)
        return train(algorithm, seed=saved_key(config), steps=steps, run_dir=directory, resume=True, **options)

    def export(self, path: str | os.PathLike[str], *, which: Which = "best") -> Path:
        """Writes the policy to one file, `.stablehlo` or `.onnx`; see `volvox.runs.export`."""
        algorithm, variables = self.algorithm, self.variables(which)
        return export(path, algorithm.policy, variables, algorithm.env.spec, config=algorithm.config)

    def publish(self, path: str | os.PathLike[str], **options: Any) -> Path:
        """Scores the best policy and writes it to one file for others; see `volvox.zoo.publish`."""
        from volvox.runs import zoo

        return zoo.publish(self, path, **options)

    def report(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Writes results, curves and settings to one HTML file; see `volvox.report.html_report`.

        Args:
          path: The file; default `report.html` in the run directory. It includes the video of `watch`, if that is in
            the run directory.

        Raises:
          ValueError: There is no run directory.
        """
        return html.html_report(self._directory("report"), path)

    def plot(self, path: str | os.PathLike[str] | None = None) -> "Figure":
        """Draws the learning curve; see `volvox.report.learning_curve`.

        Args:
          path: The PNG file; default `learning_curve.png` in the run directory, if there is one.
        """
        path = self.run_dir / PLOT if path is None and self.run_dir is not None else path
        env = self.algorithm.env
        random = atari_scores(env.config).get("random")
        return plots.learning_curve(self.metrics, path, title=env.spec.name, random=random)

    def watch(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        which: Which = "best",
        members: int | None = None,
        seed: int = 0,
        max_episode_steps: int | None = None,
    ) -> Path:
        """Records one episode of the policy, with its likeliest actions; a notebook shows the video.

            run.watch("last.mp4", which="last")
            run.watch("parents.mp4", members=9)

        Args:
          path: The MP4 file; default `episode.mp4` in the run directory.
          which: The best policy so far, or the last; see `variables`.
          members: Number of policies that play side by side: the elite and the parents of a population with lineages,
            or the latest policies of the first of several learners. None: one policy, `which`.
          seed: The environment's seed.
          max_episode_steps: Timesteps after which the episode is truncated; default: the environment's limit.

        Returns:
          The path. The episode's return and length are printed.

        Raises:
          ValueError: There is neither a path nor a run directory, the run has fewer members, or the environment can
            neither be drawn nor observed as images.
        """
        path = self._directory("watch") / VIDEO if path is None else path
        variables = self.variables(which) if members is None else self._members(members)
        given = (self.algorithm.env, self.algorithm.policy, variables, path)
        recorded = video.record_video(*given, num_policies=members, seed=seed, max_episode_steps=max_episode_steps)
        print(f"{recorded.path}: return {recorded.episode_return:g} in {recorded.length} timesteps")
        video.show(recorded.path)
        return recorded.path

    def _members(self, count: int) -> ArrayTree:
        """Returns the variables `[count, ...]` of members; see `watch`."""
        algorithm, found = self.algorithm, []
        if self.state is not None and algorithm.parents is not None:
            parents = algorithm.parents(self.state)
            rows = range(-1, len(jax.tree.leaves(parents)[0]) - 1)  # the elite is last
            found = [pick(parents, i) for i in rows]
        elif self.state is not None:
            found = [variables(self.state) for variables in algorithm.learners]
        if integer("members", count, low=1) > len(found):
            raise ValueError(f"members={count}: this run keeps {len(found)}; a GA or several learners have more")
        return jax.tree.map(lambda *x: jnp.stack(x), *found[:count])

    def _directory(self, method: str) -> Path:
        if self.run_dir is None:
            raise ValueError(f"{method} needs a run directory; train with run_dir='runs/a'")
        return self.run_dir


def _with_settings(algorithm: Algorithm, changes: Mapping[str, Any]) -> Algorithm:
    """Makes the algorithm again with other values for fields of its settings or strategy."""
    given: Any = algorithm.config.get("settings", algorithm.config.get("strategy"))
    several: list[Any] = list(given) if isinstance(given, Sequence) else [given]  # settings of each of several learners
    if algorithm.remake is None or not all(map(dataclasses.is_dataclass, several)):
        raise ValueError("changes need an algorithm of vx.learn or vx.evolve, whose settings are a dataclass")
    fields = [field.name for field in dataclasses.fields(several[0])]
    if unknown := [change for change in changes if change not in fields]:
        raise ValueError(f"{type(several[0]).__name__} has no setting {unknown[0]!r}; it has {', '.join(fields)}")
    if explored := changes.keys() & getattr(algorithm.config.get("pbt"), "explore", {}).keys():
        raise ValueError(f"pbt explores {min(explored)!r}: each learner has its own value")
    changed = [dataclasses.replace(one, **changes) for one in several]
    return algorithm.remake(changed if isinstance(given, Sequence) else changed[0])


def load(run_dir: str | os.PathLike[str], *, custom: Iterable[Any] = (), algorithm: Algorithm | None = None) -> Any:
    """Loads a run, in any process, to play, film, plot, export or continue it.

    The algorithm is rebuilt from the settings in `config.json`. Nothing is unpickled and no code of the directory is
    executed: only names in `custom` and public names of a few packages are used (`volvox.runs.config`). A run in
    progress is loaded as of its newest checkpoint. Without checkpoints, `elite.json` is enough to play the run (its
    `state` is None), and `metrics.jsonl` to plot it.

        run = vx.load("runs/mine", custom=[MyNetwork, my_reward])
        run = vx.load("runs/robot", custom=[my_env])

    Args:
      run_dir: The run directory, or a file of `Run.export`, for which an `ExportedPolicy` is returned.
      custom: The user's classes and functions that `config.json` names. An `Env`, a `Genotype` or a flax module takes
        the place of the saved environment or network, for example if these cannot be described by names.
      algorithm: The whole algorithm, for algorithms that neither `evolve` nor `learn` made.

    Returns:
      The run, as `volvox.train` returned it.

    Raises:
      ValueError: There is no run, a part cannot be rebuilt, or the algorithm's settings differ from the saved ones.
      volvox.DamagedCheckpointError: There are checkpoints, but none can be used.
    """
    path, custom = Path(run_dir).absolute(), tuple(custom)
    if is_exported(path):
        return load_exported(path)
    config = read_config(path)
    algorithm = rebuild(config["algorithm"], custom, path) if algorithm is None else algorithm
    ignored = [f"algorithm.env.{name}:" for name in _LAYOUT]
    if any(isinstance(value, Genotype | nn.Module) for value in custom):
        # A network may have another name; the structure of its parameters is compared with the checkpoint.
        ignored.append("algorithm.network")
    found = differences(config["algorithm"], to_json(algorithm.config))
    if found := [line for line in found if not line.startswith(tuple(ignored))]:
        raise ValueError("\n  ".join([f"{path} holds a run with other settings:", *found]))
    restored = read_run(path, algorithm, config)
    if restored is not None:
        return Run(algorithm, *restored, path, interrupted=None)
    elite = None
    if algorithm.from_genome is not None and (path / ELITE).exists():
        elite = algorithm.from_genome(json.loads((path / ELITE).read_text()))
    return Run(algorithm, None, read_metrics(path / METRICS), path, interrupted=None, elite=elite)


def rebuild(data: Mapping[str, Any], custom: tuple[Any, ...], path: Path) -> Algorithm:
    """Makes an algorithm from its settings in JSON form; raises ValueError, which names the path, if it cannot."""
    try:
        return _rebuild(data, custom)
    except (ValueError, gymnasium.error.Error) as error:
        raise ValueError(f"{path}: the algorithm cannot be rebuilt: {error}") from error


def _rebuild(data: Mapping[str, Any], custom: tuple[Any, ...]) -> Algorithm:
    parts = dict(data)
    for name, kinds in (("env", Env), ("network", Genotype | nn.Module)):
        given = [value for value in custom if isinstance(value, kinds)]
        if name in parts and given:
            parts[name] = given[0]
    if "env" in parts:
        parts["env"] = from_json(parts["env"], custom)
    network = parts.get("network")
    if isinstance(network, dict) and network.get("type") in _GENOTYPES:
        make = from_json({"function": network["type"]})
        arguments = {name: from_json(value, custom) for name, value in network.items() if name != "type"}
        if "reference" in arguments:
            arguments["reference"] = reference_batch(parts["env"], size=arguments["reference"])
        parts["network"] = make(spec=parts["env"].spec, **arguments)
    algorithm = from_json(parts, custom)
    if not isinstance(algorithm, Algorithm):
        raise ValueError("config.json names no function that makes one; pass algorithm=")
    return algorithm
