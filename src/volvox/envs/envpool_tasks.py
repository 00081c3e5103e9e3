"""Atari games and MuJoCo tasks: presets of `envpool`, and how scores on Atari are measured."""

import csv
import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from numpy.random import RandomState

from volvox._checks import integer
from volvox.envs.envpool_group import envpool, load_envpool
from volvox.envs.groups import unknown_name
from volvox.envs.preprocessing import bilinear_frames, opening
from volvox.types import Config, Env

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
    config = {"type": "volvox.envs.atari", **locals()}
    names = {name.lower(): name for name in atari_games()}
    folded = re.sub(r"^ALE/|(NoFrameskip|Deterministic)?-v\d+$", "", str(game))
    folded = re.sub(r"[_ ]", "", folded).lower()
    if folded not in names:
        raise unknown_name("Atari game", game, names.values())
    if not 0.0 <= sticky_actions < 1.0:
        raise ValueError(f"sticky_actions must be a probability of at least 0 and below 1, got {sticky_actions!r}")
    if preprocessing not in get_args(Preprocessing):
        raise ValueError(f"preprocessing must be one of {', '.join(get_args(Preprocessing))}, got {preprocessing!r}")
    if preprocessing == "uber" and episodic_life:
        raise ValueError('preprocessing="uber" plays whole games: its opening would be played for every life')
    integer("noop_max", noop_max, low=1)
    integer("image_size", image_size, low=max(2, integer("stack", stack, low=1) + 1))
    config["game"] = names[folded]
    env = opening(envpool(**_emulator(config)), _opening(config))
    if preprocessing == "uber":
        env = bilinear_frames(env, image_size=image_size, stack=stack)
    return env._replace(config=config)


def _emulator(config: Config) -> dict[str, Any]:
    """Returns the arguments of `envpool` for those of `atari`."""
    uber = config["preprocessing"] == "uber"
    return {
        **{name: config[name] for name in ("num_envs", "groups", "threads", "max_episode_steps", "frame_skip")},
        **{name: config[name] for name in ("noop_max", "full_action_space", "episodic_life")},
        "task": f"{config['game']}-v5",
        "name": config["game"],
        "stack_num": 1 if uber else config["stack"],
        "repeat_action_probability": config["sticky_actions"],
        "use_fire_reset": config["fire_reset"] and not uber,
        "img_height": _SCREEN[0] if uber else config["image_size"],
        "img_width": _SCREEN[1] if uber else config["image_size"],
    }


def _opening(config: Config) -> tuple[int, ...]:
    """Returns the actions that begin an episode, for the arguments of `atari`."""
    fires = config["fire_reset"] and (config["full_action_space"] or config["game"] not in _FIRE_IS_NOT_SECOND)
    return (1, 2) if fires and config["preprocessing"] == "uber" else ()


def color_screen(env: Env) -> Env | None:
    """Makes the recipe of the same Atari game with its screen in colour as the observation.

    Groups of both recipes with the same seed and actions play the same episodes.

    Args:
      env: Any recipe.

    Returns:
      A recipe of one environment whose observations are uint8 `[B, 210, 160, 3]`; None if `env` is no Atari game.
    """
    if atari_game(env.config) is None:
        return None
    config, actions = _unwrapped(env.config)
    if config["type"] == "volvox.envs.atari":
        config, actions = _emulator(config), (*_opening(config), *actions)
    screen = {"gray_scale": False, "img_height": _SCREEN[0], "img_width": _SCREEN[1], "stack_num": 1}
    settings = {**config, **screen, "num_envs": 1, "groups": 1}
    settings.pop("type", None)
    return opening(envpool(**settings), actions)


def _unwrapped(config: Config) -> tuple[Config, tuple[int, ...]]:
    """Returns the config of the environment inside all wrappers, and the actions of their openings."""
    actions: tuple[int, ...] = ()
    while "env" in config:
        config, actions = config["env"], (*config.get("actions", ()), *actions)
    return config, actions


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
    is_atari = atari_game(env.config) is not None
    protocol = protocol or ("sticky" if is_atari else "fresh")
    if protocol not in get_args(Protocol):
        raise ValueError(f"protocol must be one of {', '.join(get_args(Protocol))}, got {protocol!r}")
    if protocol == "fresh":
        return protocol, {}
    if not is_atari:
        raise ValueError(f"protocol={protocol!r} is for Atari games; {env.spec.name} takes 'fresh', its default")
    if protocol == "sticky":
        return protocol, {"repeat_action_probability": STICKINESS, "episodic_life": False}
    seeds = _seeds_of_starts(_unwrapped(env.config)[0].get("noop_max", 30))
    return protocol, {"repeat_action_probability": 0.0, "episodic_life": False, "seeds": seeds}


def whole_games(env: Env) -> dict[str, Any]:
    """Returns options of `env.make` that make an episode a whole game, also if a lost life would end it."""
    return {} if atari_game(env.config) is None else {"episodic_life": False}


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


def human_normalized(game: str | None, score: float) -> float | None:
    """Scales a score to 0 for random play and 1 for a human tester: (score - random) / (human - random).

    The scores of random play and humans are in `atari_scores.csv` beside this file: of 57 games, from the no-op-start
    evaluations of DQN and its successors, as collected in google-deepmind/dqn_zoo (`atari_data.py`).

    Example:
      >>> volvox.envs.human_normalized("Frostbite", 2200)
      0.5
      >>> sum(volvox.envs.human_normalized(game, 0) is not None for game in volvox.envs.atari_games())
      57

    Args:
      game: Name of the game as in `atari_games`.
      score: Mean return, not clipped.

    Returns:
      The normalised score; None for anything but these games.
    """
    known = known_scores(game)
    return (score - known["random"]) / (known["human"] - known["random"]) if known else None


def atari_game(config: Config) -> str | None:
    """Returns the name of the Atari game of an environment's `Env.config`; None for all other environments."""
    config, _ = _unwrapped(config)
    if config.get("type") == "volvox.envs.atari":
        return config["game"]
    game = str(config.get("task")).removesuffix("-v5")  # "Blackjack-v1" is another game than Atari's
    return game if config.get("type") == "volvox.envs.envpool" and game in atari_games() else None


@functools.cache
def known_scores(game: str | None) -> Mapping[str, float]:
    """Returns the known scores of a game: of `random` play, of a `human`, and the `least` possible score.

    The first two are those of `human_normalized`. The least is left out if rewards may be negative and no bound of
    their sum is known. For anything but the 57 games the result is empty.
    """
    with Path(__file__).with_name("atari_scores.csv").open() as file:
        row = next((row for row in csv.DictReader(file) if row["game"] == game), {})
    return {name: float(value) for name, value in row.items() if name != "game" and value}


def mujoco(
    task: str,
    *,
    num_envs: int,
    groups: int = 1,
    max_episode_steps: int = 1_000,
    threads: int | None = None,
    **options: Any,
) -> Env:
    """Makes a recipe for groups of one Gymnasium MuJoCo task.

    Observations are float32 `[B, features]`, actions float32 `[B, joints]`; the simulation itself runs in float64.
    Actions out of bounds are refused with a ValueError where Python drives the environments; inside `jit`, which
    cannot raise, they are clipped. Extras: `elapsed_steps` (int32 `[B]`). `EnvSpec.name` includes the version, because
    results of different versions cannot be compared.

    Example:
      >>> env = volvox.envs.mujoco("HalfCheetah", num_envs=32, groups=2)  # the newest: env.spec.name is HalfCheetah-v5
      >>> old = volvox.envs.mujoco("HalfCheetah-v4", num_envs=32)

    Args:
      task: "HalfCheetah", "Ant", ... (the newest version), or one with its version: "HalfCheetah-v4".
      num_envs: Environments in all groups together.
      groups: Number of groups; a divisor of `num_envs`.
      max_episode_steps: Timesteps after which an episode is truncated.
      threads: C++ threads that step a group; None takes every CPU this process may use.
      **options: Further settings by envpool's names, such as `frame_skip` or `reset_noise_scale`.

    Returns:
      The recipe.

    Raises:
      ValueError: an unknown task or setting, or a number out of range.
    """
    config = {"type": "volvox.envs.mujoco", **locals()}
    families = load_envpool().mujoco.gym.registration.gym_mujoco_envs
    names = {f"{name}-{version}": f"{name}-{version}" for name, versions, _ in families for version in versions}
    names |= {name: f"{name}-{versions[-1]}" for name, versions, _ in families}
    found = {name.lower(): full for name, full in names.items()}.get(str(task).lower())
    if found is None:
        raise unknown_name("MuJoCo task", task, names)
    config |= {"task": found, **config.pop("options")}
    options["max_episode_steps"] = max_episode_steps
    return envpool(found, num_envs=num_envs, groups=groups, threads=threads, **options)._replace(config=config)
