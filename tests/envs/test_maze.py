"""The hard maze against the published dynamics, written out one number at a time."""

import math

import jax
import numpy as np
import pytest

from volvox.envs import hard_maze, maze

# Of hard_maze.txt beside Lehman & Stanley's code: where the robot begins, the goal, and the ends of the walls.
START, GOAL = (36, 184), (31, 20)
WALLS = """
    41 5 3 8      3 8 4 49       4 49 57 53     4 49 7 202     7 202 195 198   195 198 186 8   186 8 39 5
    56 54 56 157  57 106 158 162 77 201 108 164 6 80 33 121    192 146 87 91   56 55 133 30
"""
WALLS = [[*map(float, WALLS.split()[i : i + 4])] for i in range(0, len(WALLS.split()), 4)]


class Robot:
    """The maze of Lehman & Stanley in scalar Python, double precision; what `maze` computes must follow it."""

    def __init__(self):
        self.x, self.y = (float(value) for value in START)
        self.heading = self.speed = self.turn = 0.0

    def step(self, action):
        turn, speed = (6 * min(max(float(a), -0.5), 0.5) for a in action)
        self.turn += min(max(turn - self.turn, -0.2), 0.2)
        self.speed += min(max(speed - self.speed, -0.2), 0.2)
        x = self.x + self.speed * math.cos(math.radians(self.heading))
        y = self.y + self.speed * math.sin(math.radians(self.heading))
        self.heading += self.turn
        if min(self.distance(wall, x, y) for wall in WALLS) >= 8:
            self.x, self.y = x, y

    @staticmethod
    def distance(wall, x, y):
        ax, ay, bx, by = wall
        share = ((x - ax) * (bx - ax) + (y - ay) * (by - ay)) / ((bx - ax) ** 2 + (by - ay) ** 2)
        share = min(max(share, 0.0), 1.0)
        return math.hypot(x - ax - share * (bx - ax), y - ay - share * (by - ay))

    def range(self, angle):
        """By Cramer's rule on (position + t * direction) on the wall."""
        direction = math.radians(self.heading + angle)
        dx, dy = math.cos(direction), math.sin(direction)
        nearest = 100.0
        for ax, ay, bx, by in WALLS:
            matrix = np.array([[dx, ax - bx], [dy, ay - by]])
            if abs(np.linalg.det(matrix)) > 1e-12:
                t, share = np.linalg.solve(matrix, [ax - self.x, ay - self.y])
                if 0 < share < 1 and 0 < t < nearest:
                    nearest = t
        return nearest / 100

    def sector(self):
        angle = math.degrees(math.atan2(GOAL[1] - self.y, GOAL[0] - self.x)) - self.heading
        return int(((angle + 45) % 360) // 90)

    def senses(self):
        sectors = np.zeros(4)
        sectors[self.sector()] = 1
        return np.concatenate([[1.0], [self.range(a) for a in (-90, -45, 0, 45, 90, 180)], sectors])


def drifting(seed):
    """Actions that keep a direction for a while, so that walls are met and corners turned."""
    random = np.random.RandomState(seed)
    return np.repeat(random.uniform(-0.7, 0.7, (20, 2)), 20, axis=0).astype(np.float32)


@pytest.mark.parametrize("seed", range(2))
def test_a_drive_is_the_published_one(seed):
    robot, state = Robot(), maze.start()
    step, observe = jax.jit(maze.step), jax.jit(maze.observe)
    rejected = 0
    for number, action in enumerate(drifting(seed)):
        before = robot.x, robot.y
        robot.step(action)
        rejected += before == (robot.x, robot.y)
        state, reward, ended = step(state, action)
        np.testing.assert_allclose(state.position, [robot.x, robot.y], atol=0.02)
        if number % 10 == 0:
            np.testing.assert_allclose(observe(state), robot.senses(), atol=2e-3)
        assert bool(ended) == (number == maze.STEPS - 1)
        if not ended:
            assert reward == 0
    distance = math.hypot(robot.x - GOAL[0], robot.y - GOAL[1])
    assert float(reward) == pytest.approx(-distance, abs=0.05)
    assert rejected > 5, "the drive must meet walls"


def test_an_episode_ends_with_the_only_reward_and_tells_its_position(play):
    env = hard_maze(num_envs=2, groups=1)
    actions = np.broadcast_to(drifting(0)[:, None], (400, 2, 2))
    seen = play(env, np.concatenate([actions, actions[:2]]))
    assert env.spec.extras == ("elapsed_steps", "position")
    assert seen.terminated[400].all()
    assert not seen.truncated.any()
    assert (seen.reward[400] < 0).all()
    assert np.count_nonzero(seen.reward) == 2
    np.testing.assert_allclose(
        seen.reward[400], -np.linalg.norm(seen.extras["position"][400] - maze.GOAL, axis=1), rtol=1e-5
    )
    np.testing.assert_array_equal(seen.extras["position"][401], np.broadcast_to(maze.START, (2, 2)))
