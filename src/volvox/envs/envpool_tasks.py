"""envpool's tasks as environment groups, of every family in its wheel; presets for Atari and MuJoCo; scores on Atari.

Differences from envpool:

- *Autoreset.* After an end envpool discards the next action and answers with the first observation of the next
  episode. The group remembers which episodes ended and reports that answer as `TimeStep.first`, with reward 0.
- *Ends.* `truncated` never holds together with `terminated`. If a game is over in the very timestep of the time limit,
  envpool reports the time limit alone. The group reports a termination on Atari, whose emulators tell the two apart; in
  other families such a timestep is truncated. An end after the limit is a termination.
- *Layout.* Most images of envpool have their channels first; here they have them last. Observations of several arrays
  are nested dicts.
- *Width.* MuJoCo's arrays are 64 bits wide in C++, and 32 bits here.
- *Lifetime.* A compiled function holds the address of an envpool, not a reference to it. The group holds the
  reference until `close`.
"""

import contextlib
import csv
import ctypes
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Box

from volvox._checks import INT32, integer
from volvox.envs import groups as blocks
from volvox.envs.gymnasium_group import spec_fields
from volvox.envs.preprocessing import bilinear_frames, opening
from volvox.types import Config, Env, EnvGroup, EnvSpec, TimeStep

_OWN_RULES = re.compile(r"(gfootball|highway|jumanji|pgx|procgen)/|toy_text/.*(Blackjack|Catch|CliffWalking)")
"""Families and tasks that ignore `max_episode_steps` and end episodes by their own rules."""
_EXTRAS = {"ram": "ram", "lives": "lives", "elapsed_step": "elapsed_steps"}
Preprocessing = Literal["envpool", "uber"]
Protocol = Literal["sticky", "exact", "fresh"]
"""How a score is measured; see `volvox.play`."""
STICKINESS = 0.25
"""Probability of repeated actions under the protocol "sticky" (Machado et al. 2018, arXiv 1709.06009)."""
_EGL = "libEGL.so.1"
_DRAW = """from volvox.envs.envpool_tasks import load_envpool
pool = load_envpool().make_gymnasium("InvertedPendulum-v4", num_envs=1, render_mode="rgb_array")
pool.reset()
pool.render()"""
_NOT_DRAWN = ("envpool.gfootball", "envpool.toy_text")
# Rows and columns of a screen, also of the few games with more rows.
_SCREEN = (210, 160)
# Games whose minimal action set (that of ALE 0.11) does not have FIRE in the second place.
_FIRE_IS_NOT_SECOND = (
    *("Asterix", "Backgammon", "CrazyClimber", "Freeway", "Frogger", "JourneyEscape", "Koolaid", "KungFuMaster"),
    *("LostLuggage", "MsPacman", "Pacman", "Skiing", "Surround", "Tutankham", "VideoCheckers"),
)


def envpool(
    task: str, *, num_envs: int, groups: int = 1, threads: int | None = None, name: str | None = None, **options: Any
) -> Env:
    """Makes a recipe for groups of one envpool each, of any task for one player. `atari` and `mujoco` are presets.

    Families are Atari, Box2D, classic control, Google football, Highway, Jumanji, MiniGrid, MuJoCo (Gymnasium,
    dm_control, Meta-World, MyoSuite, Playground, robotics), Pgx, Procgen, toy text and VizDoom;
    `docs/reference/envpool_families.csv` lists the tasks that were tried. An observation is an array, or a dict of
    arrays by envpool's names.

    Groups take turns, so each gets all the threads. Every environment has its own seed, derived from `make`'s. The
    state of the emulators and the history of restarts are not part of it, so a run is repeatable only from its start.
    Discrete actions out of range are clipped (envpool would read past the end of its table of actions). Continuous
    actions out of bounds are refused with a ValueError if Python drives the environments; inside `jit`, which cannot
    raise, they are clipped.

    Example:
      >>> env = volvox.envs.envpool("CartPole-v1", num_envs=8, groups=2)
      >>> car = volvox.envs.envpool("CarRacing-v3", num_envs=4, max_episode_steps=500)
      >>> grid = volvox.envs.envpool("MiniGrid-Empty-5x5-v0", num_envs=8)  # observations are dicts

    Args:
      task: A name envpool knows, such as "Frostbite-v5" or "HalfCheetah-v5".
      num_envs: Environments in all groups together.
      groups: Number of groups; a divisor of `num_envs`.
      threads: C++ threads that step a group; None takes every CPU this process may use.
      name: `EnvSpec.name`; None takes `task`.
      **options: Further settings of the task, by envpool's names; among them are `max_episode_steps`, timesteps after
        which an episode is truncated, and `frame_skip`, frames per timestep, for emulators. None takes the task's
        default.

    Returns:
      The recipe. Its `make` also takes `seeds`, one for each environment of a group, in place of those derived from
      `seed`; and settings by envpool's names, in place of the recipe's.

    Raises:
      ValueError: an unknown task, a number out of range, a limit for a task that ignores `max_episode_steps`,
        or a task of several players, without observations, or with actions of several arrays.
      TypeError: an unknown setting.
    """
    options = {key: value for key, value in options.items() if value is not None}
    config = {"type": "volvox.envs.envpool", **locals()}
    config |= config.pop("options")
    library = load_envpool()
    if threads is not None:
        integer("threads", threads, low=1)
    if task not in (tasks := library.list_all_envs()):
        raise blocks.unknown_name("task of envpool", task, tasks)
    for key in options.keys() & {"frame_skip", "max_episode_steps"}:
        integer(key, options[key], low=1)
    own_limit = _own_limit(task, options)

    def require_limit(limit: int) -> None:
        if own_limit not in (None, limit):
            raise ValueError(f"max_episode_steps={limit}: {task!r} ends its episodes by its own rules; leave it out")

    if own_limit is not None:
        require_limit(options.get("max_episode_steps", own_limit))
        options["max_episode_steps"] = own_limit if own_limit < INT32 else 0
    if taken := options.keys() & {"num_threads", "batch_size", "seed", "env_seed"}:
        raise TypeError(f"{min(taken)} is no setting here: threads, groups, and the seed of Env.make set it")
    native_spec = library.make_spec(task, **options)
    unlimited = native_spec.config.max_episode_steps == 0  # the task says how long each episode is

    def make_group(
        spec: EnvSpec,
        num_envs: int,
        *,
        index: int,
        seed: int,
        host: bool,
        seeds: Any = None,
        render_mode: str | None = None,
        **changes: Any,
    ) -> EnvGroup:
        limit = spec.max_episode_steps
        require_limit(limit)
        drawn = {"render_mode": render_mode} if render_mode else {}
        native = library.make(
            task,
            env_type="gymnasium",
            num_envs=num_envs,
            batch_size=num_envs,
            num_threads=min(threads or len(os.sched_getaffinity(0)), num_envs),
            seed=seeds or blocks.environment_seeds(seed, group=index, num_envs=num_envs),
            **{**options, **drawn, **changes, "max_episode_steps": 0 if unlimited and limit == INT32 else limit},
        )
        modules = str(type(native).__mro__)
        if drawn and "envpool.mujoco" in modules:
            _check_mujoco_draws()
        draws = bool(drawn) and not any(module in modules for module in _NOT_DRAWN)
        return _pool_group(spec, num_envs, native, host=host, draws=draws)

    spec = _env_spec(name or task, native_spec)
    return blocks.recipe(spec, make_group, num_envs=num_envs, groups=groups, config=config)


def load_envpool() -> Any:
    """Imports envpool when it is first needed, because that takes a second."""
    if "envpool" not in sys.modules:
        with contextlib.suppress(OSError):  # MuJoCo draws by it: envpool's own copy, which comes later, finds no driver
            ctypes.CDLL(_EGL, mode=ctypes.RTLD_GLOBAL)
    import envpool

    return envpool


def _check_mujoco_draws() -> None:
    """Raises OSError where MuJoCo would end the process that draws: without EGL, its driver, or EGL before envpool."""
    tried = subprocess.run([sys.executable, "-P", "-c", _DRAW], capture_output=True, text=True)
    if tried.returncode != 0:
        install = "(Debian: apt-get install libegl1 libgl1-mesa-dri; NVIDIA: NVIDIA_DRIVER_CAPABILITIES=all)"
        raise OSError(f"MuJoCo cannot draw: EGL or its driver is missing; install both {install}.\n{tried.stderr}")
    try:
        ctypes.CDLL(_EGL, mode=os.RTLD_NOLOAD)
    except OSError as error:
        raise OSError("MuJoCo cannot draw, because envpool was imported before volvox used it.") from error


def _own_limit(task: str, options: Config) -> int | None:
    """Returns the longest episode of a task that ends by its own rules alone; None for other tasks."""
    native_spec = load_envpool().make_spec(task)
    modules = [base.__module__.split(".") for base in type(native_spec).__mro__]
    family = next(module[1] for module in modules if module[0] == "envpool")
    if not _OWN_RULES.match(f"{family}/{task}"):
        return None
    settings = native_spec.config._asdict()
    if family == "highway":  # its episodes last `duration` seconds
        settings |= options
        return round(settings["duration"] * settings["policy_frequency"])
    return int(settings["max_episode_steps"]) or INT32


def _env_spec(name: str, native_spec: Any) -> EnvSpec:
    """Describes a task as an `EnvSpec`; raises ValueError if that is impossible."""
    settings, names = native_spec.config, {key.rpartition(":")[2] for key in native_spec.state_array_spec}
    if settings.max_num_players > 1:
        raise ValueError(f"{name!r} is for {settings.max_num_players} players; only tasks for one are supported")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of float64 bounds
        observation_space, action_space = native_spec.gymnasium_observation_space, native_spec.gymnasium_action_space
        if isinstance(action_space, Box) and np.any(action_space.high == np.finfo(np.float64).max):
            action_space = Box(-np.inf, np.inf, action_space.shape, np.float64)  # C++ has other numbers for no bounds
    fields = spec_fields(name, observation_space, action_space)
    if fields["action_low"] is None and np.any(fields["action_range"][0]):
        raise ValueError(f"{name!r} has discrete actions that do not begin at 0")
    return EnvSpec(
        name=name,
        **fields,
        max_episode_steps=int(settings.max_episode_steps) or INT32,
        frame_skip=int(getattr(settings, "frame_skip", 1)),
        extras=tuple(ours for theirs, ours in _EXTRAS.items() if theirs in names),
    )._replace(action_range=None)


def _pool_group(spec: EnvSpec, num_envs: int, native: Any, *, host: bool, draws: bool) -> EnvGroup:
    """Makes a group of an envpool with `batch_size == num_envs`, stepped from Python or by compiled functions.

    Its state is (token, done). The token, uint8 `[8]`, orders the calls inside `jit`; it is () if Python makes the
    calls. `done`, bool `[B]`, marks environments whose next observation begins an episode.
    """
    dtype = np.dtype(native.spec.action_array_spec["action"].dtype)
    with warnings.catch_warnings():
        # gymnasium warns of float64 bounds, once, when envpool first looks at its own space, which is not used.
        warnings.simplefilter("ignore")
        _ = native.observation_space
    # Outside x64 mode JAX would narrow the buffers that C++ fills with 8-byte elements.
    with jax.enable_x64(True):
        calls: Any = None if host else native.xla()

    def init() -> tuple[Any, Any]:
        native.async_reset()
        token = () if host else jnp.array(calls[0])
        return token, (np if host else jnp).ones(num_envs, np.bool_)

    def recv(state: tuple[Any, Any]) -> tuple[tuple[Any, Any], TimeStep]:
        token, done = state
        if host:
            answer = native.recv()
        else:
            with jax.enable_x64(True):
                token, answer = calls[1](token)
        timestep = _time_step(done, answer, spec.max_episode_steps)
        return (token, timestep.terminated | timestep.truncated), timestep

    def send(state: tuple[Any, Any], action: Any) -> tuple[Any, Any]:
        token, done = state
        action = blocks.checked_action(spec, num_envs, (np if host else jnp).asarray(action))
        action = blocks.bounded_action(spec, action)
        if host:
            native.send(action.astype(dtype))
            return state
        with jax.enable_x64(True):
            return calls[2](token, jax.lax.convert_element_type(action, dtype)), done

    def restart(state: tuple[Any, Any], seed: int | None = None) -> tuple[Any, Any]:
        # `seed` has no effect: envpool's seeds are fixed when a pool is made.
        # The last `recv` may have been dispatched but not run yet; envpool aborts if it is reset in between.
        token, done = jax.block_until_ready(state)
        native.async_reset()
        return token, done | True

    def render(state: tuple[Any, Any]) -> np.ndarray:
        return native.render(env_ids=np.arange(num_envs))

    def close() -> None:
        nonlocal native, calls
        # A compiled loop may still be running; it uses the pool by address.
        jax.effects_barrier()
        native = calls = None  # the only references: envpool's threads end with the last one

    functions = (init, recv, send, restart, close)
    return EnvGroup(spec, num_envs, not host, *functions, render=render if draws else None)


def _time_step(first: Any, answer: Any, limit: int) -> TimeStep:
    """Makes a timestep of an answer of envpool; `limit` is the cutoff in timesteps."""
    observation, reward, terminated, truncated, info = answer
    # `first` is known beforehand, but is made to depend on the answer: otherwise XLA could write it to a replay
    # before other reads of that row, and would copy the whole replay. `elapsed_step` is never negative.
    first = first | (info["elapsed_step"] < 0)
    by_rules = (info.get("terminated", 0) != 0) | (info["elapsed_step"] > limit)
    terminated = terminated | (truncated & by_rules)
    reward = info.get("reward", reward)  # Atari's is not clipped
    extras = {ours: info[theirs] for theirs, ours in _EXTRAS.items() if theirs in info}
    return blocks.consistent(TimeStep(observation, reward, first, terminated, truncated, extras))


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
    differences that remain are listed in `experiments/protocols.md`.

    Example:
      >>> env = volvox.envs.atari("Frostbite", num_envs=64, groups=2)
      >>> robust = volvox.envs.atari("pong", sticky_actions=0.25, full_action_space=True)
      >>> published = volvox.envs.atari("Frostbite", preprocessing="uber")

    Args:
      game: Name of a game in any of the usual spellings: "Frostbite", "frostbite", "UpNDown", "up_n_down"; or another
        library's id: "ALE/Frostbite-v5", "FrostbiteNoFrameskip-v4", "Frostbite-v5". Only the game of an id is
        used; the arguments of this function set frame skip, sticky actions and preprocessing.
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
    folded = re.sub(r"^ALE/|(NoFrameskip|Deterministic)?-v\d+$|[_ ]", "", str(game)).lower()
    if folded not in names:
        raise blocks.unknown_name("Atari game", game, names.values())
    if not 0.0 <= sticky_actions < 1.0:
        raise ValueError(f"sticky_actions must be a probability of at least 0 and below 1, got {sticky_actions!r}")
    if preprocessing not in get_args(Preprocessing):
        raise ValueError(f"preprocessing must be one of {', '.join(get_args(Preprocessing))}, got {preprocessing!r}")
    if preprocessing == "uber" and episodic_life:
        raise ValueError('preprocessing="uber" plays whole games: its opening would be played for every life')
    integer("noop_max", noop_max, low=1)
    integer("image_size", image_size, low=max(4, integer("stack", stack, low=1) + 1))
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
    config, actions = dict(env.config), ()
    if config.pop("type") == "volvox.envs.atari":
        config, actions = _emulator(config), _opening(config)
    screen = {"gray_scale": False, "img_height": _SCREEN[0], "img_width": _SCREEN[1], "stack_num": 1}
    return opening(envpool(**{**config, **screen, "num_envs": 1, "groups": 1}), actions)


def evaluation_options(env: Env, protocol: Protocol | None) -> tuple[Protocol, dict[str, Any]]:
    """Returns a protocol and the options of `env.make` for it.

    Args:
      env: Any recipe.
      protocol: See `volvox.play`; None takes "sticky" for Atari games and "fresh" for all other environments.

    Returns:
      (protocol, options of `env.make`). With "exact" they have one of `seeds` for each no-op start.

    Raises:
      ValueError: The protocol is unknown, or it is for Atari games and the environment is not one.
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
    seeds = _seeds_of_starts(env.config.get("noop_max", 30))
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
        first = int.from_bytes(np.random.RandomState(seed).bytes(4), "little")
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
      The normalised score; None for other games.
    """
    known = known_scores(game)
    return (score - known["random"]) / (known["human"] - known["random"]) if known else None


def atari_game(config: Config) -> str | None:
    """Returns the name of the Atari game of an environment's `Env.config`; None for all other environments."""
    if config.get("type") == "volvox.envs.atari":
        return config["game"]
    game = str(config.get("task")).removesuffix("-v5")  # "Blackjack-v1" is another game than Atari's
    return game if config.get("type") == "volvox.envs.envpool" and game in atari_games() else None


def known_scores(game: str | None) -> dict[str, float]:
    """Returns the scores of `random` play and of a `human` that `human_normalized` uses; {} for other games."""
    with Path(__file__).with_name("atari_scores.csv").open() as file:
        row = next((row for row in csv.DictReader(file) if row["game"] == game), {})
    return {name: float(value) for name, value in row.items() if name != "game"}


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
      ValueError: an unknown task, or a number out of range.
      TypeError: an unknown setting.
    """
    config = {"type": "volvox.envs.mujoco", **locals()}
    families = load_envpool().mujoco.gym.registration.gym_mujoco_envs
    names = {f"{name}-{version}": f"{name}-{version}" for name, versions, _ in families for version in versions}
    names |= {name: f"{name}-{versions[-1]}" for name, versions, _ in families}
    found = {name.lower(): full for name, full in names.items()}.get(str(task).lower())
    if found is None:
        raise blocks.unknown_name("MuJoCo task", task, names)
    config |= {"task": found, **config.pop("options")}
    options["max_episode_steps"] = max_episode_steps
    return envpool(found, num_envs=num_envs, groups=groups, threads=threads, **options)._replace(config=config)
