"""Atari games: presets of `pool`."""

from typing import Literal, get_args

from envpool.atari.registration import atari_game_list

from volvox._checks import integer, nearest
from volvox.envs.envpool_group import SCREEN, pool
from volvox.envs.preprocessing import bilinear_frames, opening
from volvox.types import Env

Preprocessing = Literal["envpool", "uber"]
_FIRE_IS_NOT_SECOND = frozenset(
    (
        *("Asterix", "Backgammon", "CrazyClimber", "Freeway", "Frogger", "JourneyEscape", "Koolaid", "KungFuMaster"),
        *("LostLuggage", "MsPacman", "Pacman", "Skiing", "Surround", "Tutankham", "VideoCheckers"),
    )
)
"""Games whose minimal action set (that of ALE 0.11) does not have FIRE in the second place."""


def atari_games() -> tuple[str, ...]:
    """Returns the names of all games, such as "Frostbite" and "UpNDown"."""
    return tuple("".join(word.capitalize() for word in game.split("_")) for game in atari_game_list)


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
    of the last two emulator frames of a step. The first observation of an episode repeats one frame. Extras are `ram`
    (uint8 `[B, 128]`), `lives` (int32 `[B]`) and `elapsed_steps` (int32 `[B]`, steps since the game began). Rewards are
    the game's, unclipped.

    With `preprocessing="uber"` it is that of the GPU code of Such et al. (2017, arXiv 1712.06567) as far as the
    emulators allow: observations are float32 in [0, 1], resized by linear interpolation with aligned corners; an
    episode's first observation has black before its one frame; there are always 1 to `noop_max` idle frames; and where
    FIRE is the second of a game's actions, that and the third are played for a step each before the episode begins.
    What remains different is in `docs/architecture.md`.

    Args:
        game: Name of a game in any of the usual spellings: "Frostbite", "frostbite", "Frostbite-v5"; "UpNDown",
            "up_n_down".
        num_envs: Environments in all groups together.
        groups: Number of groups, which take turns; a divisor of `num_envs`. Two overlap emulation and inference.
        max_episode_steps: Steps (not frames) after which an episode is truncated.
        frame_skip: Emulator frames an action lasts.
        stack: Frames in an observation.
        noop_max: An episode begins with 1 to `noop_max` idle frames, one fewer where FIRE is pressed as well.
        threads: C++ threads stepping a group; None takes every CPU this process may use.
        full_action_space: Offer all 18 actions rather than those the game uses.
        sticky_actions: Probability with which the emulator repeats the previous action at a frame.
        episodic_life: A lost life ends the episode (as a termination); the game goes on in the next one.
        fire_reset: Press FIRE when an episode begins, in games that have it.
        image_size: Height and width of an observation in pixels.
        preprocessing: How screens become observations and how episodes begin.

    Raises:
        ValueError: An unknown game, a number out of range, or options that contradict; the message says what is
            allowed.
    """
    names = {name.lower(): name for name in atari_games()}
    key = str(game).removesuffix("-v5").replace("_", "").replace(" ", "").lower()
    if key not in names:
        raise ValueError(
            f"game {game!r} is not an Atari game envpool knows{nearest(str(game), names.values())}; "
            "volvox.envs.atari_games() lists all"
        )
    if not 0.0 <= sticky_actions < 1.0:
        raise ValueError(f"sticky_actions must be a probability of at least 0 and below 1, got {sticky_actions!r}")
    if preprocessing not in get_args(Preprocessing):
        raise ValueError(f"preprocessing must be one of {', '.join(get_args(Preprocessing))}, got {preprocessing!r}")
    uber = preprocessing == "uber"
    if uber and episodic_life:
        raise ValueError('preprocessing="uber" plays whole games: its opening would be played for every life')
    stack, image_size = integer("stack", stack, low=1), integer("image_size", image_size, low=max(2, stack + 1))
    env = pool(
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
        img_height=SCREEN[0] if uber else image_size,
        img_width=SCREEN[1] if uber else image_size,
    )
    if not uber:
        return env
    if fire_reset and (full_action_space or names[key] not in _FIRE_IS_NOT_SECOND):
        env = opening(env, (1, 2))
    env = bilinear_frames(env, image_size=image_size, stack=stack)
    return env._replace(config={**env.config, "preprocessing": preprocessing})
