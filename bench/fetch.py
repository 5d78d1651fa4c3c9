"""How much faster our Fetch tasks step than gymnasium-robotics' on one core, in one run.

    taskset -c 1 python bench/fetch.py            # add a number for more episodes

Both play the same episodes by turns, and every observation is compared. `random` actions are
uniform, `held` ones last ten steps and drive the arm to where it nears itself, and `push` ones
bring the object to the goal. Times are of `step` alone; the ratio is the median over episodes.
A line of JSON for each case.
"""

import json
import sys
import time
from typing import Any

import gymnasium as gym
import gymnasium_robotics
import mujoco
import numpy as np

import uvd.tasks.fetch  # noqa: F401  registers ours

gym.register_envs(gymnasium_robotics)


class Push:
    """A scripted push: behind the object, down, and through it towards the goal."""

    def __init__(self) -> None:
        self.down = False

    def __call__(self, obs: dict[str, Any], rng: np.random.Generator) -> np.ndarray:
        grip, place = obs["observation"][:3], obs["observation"][3:6]
        way = (obs["desired_goal"] - place)[:2]
        way /= np.linalg.norm(way) + 1e-9
        behind = place[:2] - 0.07 * way - grip[:2]
        action = rng.normal(0, 0.05, 4)
        if self.down:
            action[:2] += 0.5 * way
        elif np.linalg.norm(behind) > 0.03:
            action[:2] += 10 * behind * (grip[2] > 0.46)
            action[2] += 1.0 * (grip[2] < 0.46)
        else:
            action[2] -= 0.5
            self.down = grip[2] < 0.43
        return action.clip(-1, 1)


def actions_of(case: str, env: Any, seed: int) -> np.ndarray:
    """The actions of one episode."""
    rng = np.random.default_rng(seed)
    if case == "random":
        return rng.uniform(-1, 1, (50, 4)).astype(np.float32)
    if case == "held":
        return rng.uniform(-1.5, 1.5, (5, 4)).clip(-1, 1).repeat(10, 0).astype(np.float32)
    policy, actions = Push(), []
    obs, _ = env.reset(seed=seed)
    for _ in range(50):
        actions.append(policy(obs, rng).astype(np.float32))
        obs = env.step(actions[-1])[0]
    return np.array(actions)


def play(env: Any, seed: int, actions: np.ndarray) -> tuple[float, np.ndarray]:
    """Seconds that an episode's steps took, and its observations."""
    env.reset(seed=seed)
    seen, spent = [], 0.0
    for action in actions:
        begun = time.perf_counter()
        obs = env.step(action)[0]
        spent += time.perf_counter() - begun
        seen.append(np.concatenate(list(obs.values())))
    return spent, np.array(seen)


def main(episodes: int) -> None:
    """Prints a line for each task and kind of actions."""
    for task in ("Push", "Slide"):
        theirs: Any = gym.make(f"Fetch{task}-v4").unwrapped
        ours: Any = gym.make(f"uvd/Fetch{task}-v4", redraw=False).unwrapped
        for case in ("random", "push", "held"):
            times, same = [], True
            for seed in range(episodes):
                actions = actions_of(case, ours, seed)
                (t, a), (o, b) = (play(env, seed, actions) for env in (theirs, ours))
                times.append((t, o))
                same &= np.array_equal(a, b)
            t, o = np.median(times, 0) / 50
            ratio = np.median([t / o for t, o in times])
            print(json.dumps({
                "mujoco": mujoco.__version__, "task": task, "actions": case,
                "theirs_steps_s": round(1 / t), "ours_steps_s": round(1 / o),
                "ratio": round(float(ratio), 2), "bit_identical": bool(same),
            }))  # fmt: skip


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40)
