"""Atari games and MuJoCo tasks: presets of `envpool`, and how scores on Atari are measured."""

import csv
import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from numpy.random import RandomState

from volvox._checks import integer, nearest
from volvox._settings import recorded
from volvox.envs.envpool_group import envpool, load_envpool
from volvox.envs.preprocessing import bilinear_frames, opening
from volvox.types import Env

Preprocessing = Literal["envpool", "uber"]
Protocol = Literal["sticky", "exact", "fresh"]
"""How a score is measured; see `volvox.play`."""
STICKINESS = 0.25
"""Probability of repeated actions under the protocol "sticky" (Machado et al. 2018, arXiv 1709.06009)."""
# Rows and columns of a screen, also of the few games with more rows.
_SCREEN = (210, 160)
# Games whose minimal action set (that of ALE 0.11) does not have FIRE in the second place.
_FIRE_IS_NOT_SECOND = frozenset(
    (
        *("Asterix", "Backgammon", "CrazyClimber", "Freeway", "Frogger", "JourneyEscape", "Koolaid", "KungFuMaster"),
        *("LostLuggage", "MsPacman", "Pacman", "Skiing", "Surround", "Tutankham", "VideoCheckers"),
    )
)


def atari_games() -> tuple[str, ...]:
    """Returns the names of all games, such as "Frostbite" and "UpNDown".

    Example:
      >>> envs = [volvox.envs.atari(game, num_envs=8) for game in volvox.envs.atari_games()[:3]]
      >>> "UpNDown" in volvox.envs.atari_games()
      True
    """
    names = load_envpool().atari.registration.atari_game_list
    return tuple("".join(word.capitalize() for word in game.split("_")) for game in names)


@recorded
def atari(
    game: str,
    *,
    num_envs: int = 128,
    groups: int = 2,
    max_episode_steps: int = 27_000,
    frame_skip: int = 4,
    stack: int = 4,
    noop_max: int = 30,
    threads: int | None = None,
    full_action_space: bool = False,
    sticky_actions: float = 0.0,
    episodic_life: bool = False,
    fire_reset: bool = True,
    image_size: int = 84,
    preprocessing: Preprocessing = "envpool",
) -> Env:
    """Makes a recipe for groups of one Atari game.

    Observations are uint8 `[B, image_size, image_size, stack]`, the newest frame last; each frame is the grey maximum
    of the last two emulator frames of a timestep. The first observation of an episode repeats one frame. Extras are
    `ram` (uint8 `[B, 128]`), `lives` (int32 `[B]`) and `elapsed_steps` (int32 `[B]`, timesteps since the game began).
    Rewards are the game's, unclipped.

    With `preprocessing="uber"` the preprocessing is that of the GPU code of Such et al. (2017, arXiv 1712.06567) as far
    as the emulators allow. Observations are float32 in [0, 1], resized by linear interpolation with aligned corners. An
    episode's first observation has black before its one frame. There are always 1 to `noop_max` idle frames. Where FIRE
    is the second of a game's actions, that and the third are played for a timestep each before the episode begins. The
    differences that remain are listed in `docs/decisions.md`.

    Example:
      >>> env = volvox.envs.atari("Frostbite", num_envs=64, groups=2)
      >>> robust = volvox.envs.atari("pong", sticky_actions=0.25, full_action_space=True)
      >>> published = volvox.envs.atari("Frostbite", preprocessing="uber")

    Args:
      game: Name of a game in any of the usual spellings: "Frostbite", "frostbite", "UpNDown", "up_n_down"; or another
        library's id: "ALE/Frostbite-v5", "FrostbiteNoFrameskip-v4", "Frostbite-v5". Of an id only the game is taken:
        frame skip, sticky actions and preprocessing are the arguments of this function, whatever the id means there.
      num_envs: Environments in all groups together.
      groups: Number of groups, which take turns; a divisor of `num_envs`. Two overlap emulation and inference.
      max_episode_steps: Timesteps (not frames) after which an episode is truncated.
      frame_skip: Emulator frames an action lasts.
      stack: Frames in an observation.
      noop_max: An episode begins with 1 to `noop_max` idle frames, one fewer where FIRE is pressed as well.
      threads: C++ threads that step a group; None takes every CPU this process may use.
      full_action_space: Offer all 18 actions rather than those the game uses.
      sticky_actions: Probability with which the emulator repeats the previous action at a frame.
      episodic_life: A lost life ends the episode (as a termination); the game goes on in the next one.
      fire_reset: Press FIRE when an episode begins, in games that have it.
      image_size: Height and width of an observation in pixels.
      preprocessing: How screens become observations and how episodes begin.

    Returns:
      The recipe.

    Raises:
      ValueError: an unknown game, a number out of range, or options that contradict each other; the message says what
        is allowed.
    """
    names = {name.lower(): name for name in atari_games()}
    key = _folded(game)
    if key not in names:
        raise ValueError(
            f"game {game!r} is not one of envpool's Atari games, which volvox.envs.atari_games() lists"
            f"{nearest(game, names.values())}"
        )
    if not 0.0 <= sticky_actions < 1.0:
        raise ValueError(f"sticky_actions must be a probability of at least 0 and below 1, got {sticky_actions!r}")
    if preprocessing not in get_args(Preprocessing):
        raise ValueError(f"preprocessing must be one of {', '.join(get_args(Preprocessing))}, got {preprocessing!r}")
    uber = preprocessing == "uber"
    if uber and episodic_life:
        raise ValueError('preprocessing="uber" plays whole games: its opening would be played for every life')
    stack, image_size = integer("stack", stack, low=1), integer("image_size", image_size, low=max(2, stack + 1))
    env = envpool(
        f"{names[key]}-v5",
        name=names[key],
        num_envs=num_envs,
        groups=groups,
        threads=threads,
        max_episode_steps=max_episode_steps,
        frame_skip=frame_skip,
        stack_num=1 if uber else stack,
        noop_max=integer("noop_max", noop_max, low=1),
        full_action_space=bool(full_action_space),
        repeat_action_probability=float(sticky_actions),
        episodic_life=bool(episodic_life),
        use_fire_reset=bool(fire_reset) and not uber,
        img_height=_SCREEN[0] if uber else image_size,
        img_width=_SCREEN[1] if uber else image_size,
    )
    if not uber:
        return env
    if fire_reset and (full_action_space or names[key] not in _FIRE_IS_NOT_SECOND):
        env = opening(env, (1, 2))
    env = bilinear_frames(env, image_size=image_size, stack=stack)
    return env._replace(config={**env.config, "preprocessing": preprocessing})


def _folded(game: object) -> str:
    """Returns the name of a game in small letters, without what ids of other libraries have around it."""
    name = re.sub(r"^ALE/|(NoFrameskip|Deterministic)?-v\d+$", "", str(game))
    return re.sub(r"[_ ]", "", name).lower()


def color_screen(env: Env) -> Env | None:
    """Makes the recipe of the same Atari game with its screen in colour as the observation.

    Groups of both recipes with the same seed and actions play the same episodes.

    Args:
      env: Any recipe.

    Returns:
      A recipe of one environment whose observations are uint8 `[B, 210, 160, 3]`; None if `env` is no Atari game.
    """
    settings = dict(env.config.get("settings", {}))
    if env.config.get("environment") != "envpool" or "gray_scale" not in settings:
        return None
    settings |= {"gray_scale": False, "img_height": _SCREEN[0], "img_width": _SCREEN[1], "stack_num": 1}
    settings.pop("task", None)  # envpool's own name of the game, which goes with the task
    return opening(envpool(env.config["task"], num_envs=1, **settings), env.config.get("opening", ()))


def evaluation_options(env: Env, protocol: Protocol | None) -> tuple[Protocol, dict[str, Any]]:
    """Finds what `env.make` takes to make the environments of a protocol.

    Args:
      env: Any recipe.
      protocol: See `volvox.play`; None takes "sticky" for Atari games and "fresh" for all other environments.

    Returns:
      (protocol, options of `env.make`). With "exact" they have one of `seeds` for each no-op start.

    Raises:
      ValueError: There is no such protocol, or none but "fresh" suits the environment.
    """
    settings = env.config.get("settings", {})
    atari = "repeat_action_probability" in settings
    protocol = protocol or ("sticky" if atari else "fresh")
    if protocol not in get_args(Protocol):
        raise ValueError(f"protocol must be one of {', '.join(get_args(Protocol))}, got {protocol!r}")
    if protocol == "fresh":
        return protocol, {}
    if not atari:
        raise ValueError(f"protocol={protocol!r} is for Atari games; {env.spec.name} takes 'fresh', its default")
    if protocol == "sticky":
        return protocol, {"repeat_action_probability": STICKINESS, **whole_games(env)}
    seeds = _seeds_of_starts(settings["noop_max"])
    return protocol, {"repeat_action_probability": 0.0, **whole_games(env), "seeds": seeds}


def whole_games(env: Env) -> dict[str, Any]:
    """Returns what `env.make` takes so that an episode is a whole game, also where a lost life would end it."""
    return {"episodic_life": False} if "episodic_life" in env.config.get("settings", {}) else {}


def _seeds_of_starts(noop_max: int) -> list[int]:
    """Returns, for each number of no-ops from 1 to `noop_max`, the smallest seed whose first episode begins with it."""
    seeds: dict[int, int] = {}
    seed = 0
    while len(seeds) < noop_max:
        # As C++ does it: the high bits of the generator's first number times noop_max.
        first = int.from_bytes(RandomState(seed).bytes(4), "little")
        seeds.setdefault(first * noop_max >> 32, seed)
        seed += 1
    return [seeds[start] for start in range(noop_max)]


def human_normalized(game: str, score: float) -> float | None:
    """Puts a score between those of random play (0) and of a human tester (1): (score - random) / (human - random).

    The scores are those all publications share, in `atari_scores.csv` beside this file: of 57 games, from the
    no-op-start evaluations of DQN and its successors, as collected in google-deepmind/dqn_zoo (`atari_data.py`).

    Example:
      >>> volvox.envs.human_normalized("Frostbite", 2200)
      0.5
      >>> sum(volvox.envs.human_normalized(game, 0) is not None for game in volvox.envs.atari_games())
      57

    Args:
      game: Name of the game as `atari_games` has it.
      score: Mean return, not clipped.

    Returns:
      The normalised score; None for anything but these games.
    """
    known = known_scores(game)
    return (score - known["random"]) / (known["human"] - known["random"]) if known else None


def game_of(env: Any) -> str:
    """Returns the name of an Atari game by its `Env.config`; of other tasks of envpool a name that no game has.

    "" for all other environments: MinAtar's games, for example, have names of Atari's, and other scores.
    """
    made_by_envpool = isinstance(env, Mapping) and env.get("environment") == "envpool"
    return str(env.get("task")).partition("-")[0] if made_by_envpool else ""


def atari_game(config: Mapping[str, Any]) -> str | None:
    """Returns the name of an Atari game by its `Env.config`; None for other environments."""
    if config.get("type") == "volvox.envs.atari":
        return str(config["game"])
    return game_of(config) or None


@functools.cache
def known_scores(game: str) -> Mapping[str, float]:
    """Returns what is known of a game's scores: of `random` play, of a `human`, and the `least` there can be.

    The first two are those of `human_normalized`. The least is left out where rewards may be negative and no bound of
    their sum is known; all are, of anything but the 57 games.
    """
    with Path(__file__).with_name("atari_scores.csv").open() as file:
        row = next((row for row in csv.DictReader(file) if row["game"] == game), {})
    return {name: float(value) for name, value in row.items() if name != "game" and value}


@recorded
def mujoco(
    task: str,
    *,
    num_envs: int,
    groups: int = 1,
    max_episode_steps: int = 1_000,
    threads: int | None = None,
    **config: Any,
) -> Env:
    """Makes a recipe for groups of one Gymnasium MuJoCo task.

    Observations are float32 `[B, features]`, actions float32 `[B, joints]`; the simulation itself runs in float64.
    Actions out of bounds are refused with a ValueError where Python drives the environments; inside `jit`, which
    cannot raise, they are clipped. Extras: `elapsed_steps` (int32 `[B]`). `EnvSpec.name` and the `task` of the
    recipe's `config` say the version: results of different versions cannot be compared.

    Example:
      >>> env = volvox.envs.mujoco("HalfCheetah", num_envs=32, groups=2)  # the newest: env.spec.name is HalfCheetah-v5
      >>> old = volvox.envs.mujoco("HalfCheetah-v4", num_envs=32)

    Args:
      task: "HalfCheetah", "Ant", ... (the newest version), or one with its version: "HalfCheetah-v4".
      num_envs: Environments in all groups together.
      groups: Number of groups; a divisor of `num_envs`.
      max_episode_steps: Timesteps after which an episode is truncated.
      threads: C++ threads that step a group; None takes every CPU this process may use.
      **config: Further settings by envpool's names, such as `frame_skip` or `reset_noise_scale`.

    Returns:
      The recipe.

    Raises:
      ValueError: an unknown task or setting, or a number out of range.
    """
    tasks = _tasks()
    newest = {name.partition("-")[0]: name for name in tasks}  # sorted, so the last version stays
    names = tasks if "-" in str(task) else list(newest)
    found = {name.lower(): name for name in names}.get(str(task).lower())
    if found is None:
        raise ValueError(f"task {task!r} is not a MuJoCo task envpool knows{nearest(task, names)}")
    config["max_episode_steps"] = max_episode_steps
    return envpool(newest.get(found, found), num_envs=num_envs, groups=groups, threads=threads, **config)


def _tasks() -> list[str]:
    """Returns the names of envpool's Gymnasium MuJoCo tasks, such as "Ant-v5", sorted by version."""
    specs = load_envpool().registration.registry.specs
    tasks = [name for name, (path, _, _) in specs.items() if path == "envpool.mujoco.gym"]
    tasks = [name for name in tasks if re.fullmatch(r"\w+-v\d+", name)]
    return sorted(tasks, key=lambda name: int(name.rpartition("v")[2]))
