import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

from volvox import envs
from volvox.envs.envpool_tasks import atari_game, color_screen, evaluation_options, known_scores, whole_games


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("Frostbite", "Frostbite"),
        ("up_n_down", "UpNDown"),
        ("Space Invaders", "SpaceInvaders"),
        ("SpaceInvadersNoFrameskip-v4", "SpaceInvaders"),
    ],
)
def test_games_are_found_in_the_usual_spellings(spelling, name):
    env = envs.atari(spelling)
    assert env.spec.name == name
    assert atari_game(env.config) == name
    assert (env.num_envs, env.num_groups) == (128, 2)


def test_settings_reach_the_emulator(play):
    env = envs.atari(
        "pong",
        num_envs=2,
        groups=1,
        stack=2,
        frame_skip=3,
        image_size=42,
        full_action_space=True,
        sticky_actions=0.25,
        max_episode_steps=4,
    )
    assert env.spec.observation_shape == (42, 42, 2)
    assert env.spec.num_actions == 18
    assert env.spec.frame_skip == 3
    assert env.config["sticky_actions"] == 0.25
    step = play(env, np.full((6, 2), 17, np.int32), host=True)
    assert step.observation.shape == (7, 2, 42, 42, 2)
    # The first stack repeats one frame; later the newest frame is the last channel.
    np.testing.assert_array_equal(step.observation[0, ..., 0], step.observation[0, ..., 1])
    np.testing.assert_array_equal(step.observation[2, ..., 0], step.observation[1, ..., 1])


def first_memories(env, *, steps=0):
    """The emulators' memories, `[B, 128]`, at each no-op start and after so many timesteps of doing nothing."""
    _, options = evaluation_options(env, "exact")
    (group,) = env.make(0, num_envs=len(options["seeds"]), num_groups=1, host=True, **options)
    state, step = group.recv(group.init())
    for _ in range(steps):
        state, step = group.recv(group.send(state, np.zeros(group.num_envs, np.int32)))
    group.close()
    return np.asarray(step.extras["ram"])


def test_sticky_actions_reach_the_emulator(play, actions_for):
    seen = []
    for sticky in (0.0, 0.9):
        env = envs.atari("Pong", num_envs=2, groups=1, sticky_actions=sticky)
        seen.append(play(env, actions_for(env, 30), 3, host=True).extras["ram"])
    assert (seen[0] != seen[1]).any()


@pytest.mark.parametrize("game", [pytest.param("Seaquest", marks=pytest.mark.slow), "Breakout"])
def test_exact_evaluation_has_every_start_once(game):
    assert len(np.unique(first_memories(envs.atari(game)), axis=0)) == 30


@pytest.mark.slow
def test_starts_are_numbered_by_their_no_ops():
    """Start k and one frame of doing nothing are start k + 1."""
    env = envs.atari("Frostbite", frame_skip=1, fire_reset=False, sticky_actions=0.25)
    np.testing.assert_array_equal(first_memories(env, steps=1)[:-1], first_memories(env)[1:])
    assert len(evaluation_options(envs.atari("Frostbite", noop_max=7), "exact")[1]["seeds"]) == 7


def test_scores_are_normalized_by_random_play_and_a_human():
    random, human = -17098.1, -4336.9  # google-deepmind/dqn_zoo, dqn_zoo/atari_data.py at 359945d
    assert known_scores("Skiing") == {"random": random, "human": human}
    scores = [envs.human_normalized("Skiing", score) for score in (random, human, 2 * human - random)]
    assert scores == pytest.approx([0, 1, 2])
    assert known_scores("HalfCheetah-v5") == {}
    assert sum(bool(known_scores(game)) for game in envs.atari_games()) == 57


def test_configs_make_the_same_recipe_again():
    env = envs.atari("pong", num_envs=8, preprocessing="uber", noop_max=20)
    assert env.config["game"] == "Pong"
    assert envs.atari(**{key: value for key, value in env.config.items() if key != "type"}).config == env.config
    for task in (envs.atari("pong"), envs.envpool("Pong-v5", num_envs=2)):
        assert atari_game(task.config) == "Pong"
        assert whole_games(task) == {"episodic_life": False}
        assert evaluation_options(task, None)[0] == "sticky"
        assert len(evaluation_options(task, "exact")[1]["seeds"]) == 30
    for other in (envs.mujoco("Hopper", num_envs=1), envs.envpool("Blackjack-v1", num_envs=1), envs.cartpole()):
        assert atari_game(other.config) is None
        assert whole_games(other) == {}
        assert evaluation_options(other, None) == ("fresh", {})
        with pytest.raises(ValueError, match="protocol"):
            evaluation_options(other, "sticky")


@pytest.mark.parametrize(
    "arguments",
    [
        {"game": "Frostbit"},
        {"sticky_actions": 1.0},
        {"image_size": 3, "stack": 2},
        {"preprocessing": "ubr"},
        {"preprocessing": "uber", "episodic_life": True},
    ],
)
def test_mistakes_are_refused(arguments):
    with pytest.raises(ValueError, match="|".join([*arguments, str(arguments.get("game"))])):
        envs.atari(**{"game": "Pong", **arguments})


@pytest.mark.parametrize("preprocessing", ["envpool", "uber"])
def test_a_screen_in_color_shows_the_same_game(preprocessing, play, actions_for):
    options = {"preprocessing": preprocessing, "frame_skip": 3, "sticky_actions": 0.25}
    env = envs.atari("Frostbite", num_envs=1, groups=1, **options)
    screen = color_screen(env)
    assert screen.spec.observation_shape == (210, 160, 3)
    assert screen.spec.frame_skip == 3
    seen = []
    for recipe in (env, screen):
        seen.append(play(recipe, actions_for(env, 20), 3, num_envs=1, num_groups=1, host=True))
    np.testing.assert_array_equal(seen[0].extras["ram"], seen[1].extras["ram"])
    np.testing.assert_array_equal(seen[0].first, seen[1].first)
    red, green, blue = np.asarray(seen[1].observation[-1], float).reshape(-1, 3).mean(0)
    assert blue > green > red  # Frostbite is sky and sea
    for other in (probes.constant(), envs.mujoco("Hopper", num_envs=1)):
        assert color_screen(other) is None


def test_mujoco_actions_outside_their_bounds_are_refused_or_clipped():
    """Clipped where nothing can be raised: the control cost of Humanoid is then that of 0.4, not of 5."""
    env = envs.mujoco("Humanoid", num_envs=2)
    (group,) = env.make(0, host=True)
    state, _ = group.recv(group.init())
    state = group.send(state, np.full((2, 17), np.float32(0.4)))  # a little more than 0.4
    state, _ = group.recv(state)
    for wrong, error in ((5.0, ValueError), (np.nan, FloatingPointError)):
        action = np.zeros((2, 17), np.float32)
        action[1, 3] = wrong
        with pytest.raises(error, match="Humanoid-v5"):
            group.send(state, action)
    group.close()

    rewards = []
    for action in (0.4, 5.0):
        (group,) = env.make(0)
        state, _ = group.recv(group.init())
        state, step = group.recv(group.send(state, jnp.full((2, 17), action)))
        rewards.append(jax.block_until_ready(step.reward))
        group.close()
    np.testing.assert_allclose(*rewards, rtol=1e-5)


def test_mujoco_tasks_and_their_settings_are_found():
    spec = envs.mujoco("humanoid", num_envs=4, frame_skip=3).spec
    assert (spec.name, spec.frame_skip, spec.num_actions) == ("Humanoid-v5", 3, None)
    assert envs.mujoco("halfcheetah-v4", num_envs=4).spec.name == "HalfCheetah-v4"
    for wrong in ("HalfCheeta", "HalfCheetah-v9"):
        with pytest.raises(ValueError, match=f"{wrong}.*did you mean 'HalfCheetah"):
            envs.mujoco(wrong, num_envs=4)
