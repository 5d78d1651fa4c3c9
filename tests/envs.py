"""Small goal environments for the tests; worker processes import them as `envs:Id`."""

import os
import sys
import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Tuple


class Line(gym.Env):
    """A point on a plane walks towards a goal.

    `ends`: an episode terminates where the point leaves the unit square, so lengths vary.
    `trouble`: what happens in the middle of an episode while the file `file` exists; unless
    `always`, the trouble removes the file. With `only`, it happens to episodes with that seed.
    """

    def __init__(
        self,
        kind: str = "sparse",
        ends: bool = False,
        low: float = -1.0,
        high: float = 1.0,
        says: bool = True,
        file: str = "",
        trouble: str = "",
        always: bool = False,
        only: int = -1,
        noise: float = 0.02,
    ) -> None:
        box = Box(-np.inf, np.inf, (2,), np.float64)
        self.observation_space = Dict(
            observation=Box(-np.inf, np.inf, (3,), np.float64), achieved_goal=box, desired_goal=box
        )
        self.action_space = Box(low, high, (2,), np.float32)
        self.kind, self.ends, self.says, self.noise = kind, ends, says, noise
        self.file, self.trouble, self.always, self.only = file, trouble, always, only

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        self.point = self.np_random.uniform(-0.8, 0.8, 2)
        self.goal = self.np_random.uniform(-0.8, 0.8, 2)
        self.time = 0
        self.troubled = bool(self.trouble) and self.only in (-1, seed)
        return self._look(), {}

    def _look(self):
        obs = np.append(self.point, self.time / 10)
        point, goal = self.point.copy(), self.goal.copy()
        return {"observation": obs, "achieved_goal": point, "desired_goal": goal}

    def step(self, action):
        assert self.action_space.contains(action), action
        low, high = self.action_space.low, self.action_space.high
        unit = 2 * (action - low) / (high - low) - 1
        self.point = self.point + 0.2 * unit + self.noise * self.np_random.standard_normal(2)
        self.time += 1
        if self.troubled and self.time == 3:
            self._make_trouble()
        obs = self._look()
        reward = self.compute_reward(obs["achieved_goal"], obs["desired_goal"], {})
        there = np.linalg.norm(self.point - self.goal) <= 0.25
        info = {"is_success": there} if self.says else {}
        return obs, float(reward), self.ends and bool(abs(self.point).max() > 1), False, info

    def _make_trouble(self) -> None:
        try:
            if self.always:
                os.stat(self.file)
            else:
                os.remove(self.file)
        except FileNotFoundError:
            return
        if self.trouble == "raise":
            raise RuntimeError("the gripper\nis stuck")
        if self.trouble == "die":
            print("out of gears", file=sys.stderr)
            os._exit(7)
        time.sleep(1000)

    def compute_reward(self, achieved, desired, info):
        achieved, desired = np.asarray(achieved), np.asarray(desired)
        gap = np.linalg.norm(achieved - desired, axis=-1)
        widest = abs(achieved - desired).max(-1)
        return {
            "sparse": -(gap > 0.25).astype(np.float32),
            "one": (gap <= 0.25).astype(np.float64),
            "square": -(widest > 0.25).astype(np.float32),
            "distance": -gap,
            "dense": np.exp(-gap),
        }[self.kind]


class Modules(Line):
    """Its observation says whether its process has loaded JAX."""

    def _look(self):
        return {**super()._look(), "observation": np.append(self.point, "jax" in sys.modules)}


class Blind(Line):
    """Does not show where the point is."""

    def _look(self):
        return {**super()._look(), "observation": np.array([0.0, 0.0, self.time / 10])}


class Drawn(Line):
    """Its pictures are of one grey, lighter with every step."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode

    def render(self):
        if os.environ["MUJOCO_GL"] == "egl":
            raise RuntimeError("no\ndisplay")
        return np.full((32, 48, 3), 20 * self.time, np.uint8)


class Late(Line):
    """Nothing moves before the fifth step."""

    def step(self, action):
        before = self.point
        answer = super().step(action)
        if self.time < 5:
            self.point = before
            answer[0].update(self._look())
        return answer


class Restless(Line):
    """Starts somewhere else every time, whatever its seed."""

    def reset(self, **settings):
        super().reset(**settings)
        self.point = np.random.default_rng().uniform(-0.8, 0.8, 2)
        return self._look(), {}


class NoGoal(gym.Env):
    observation_space = Box(-1, 1, (2,))
    action_space = Box(-1, 1, (2,))


class Keyless(Line):
    def __init__(self) -> None:
        super().__init__()
        spaces = dict(self.observation_space.spaces)
        del spaces["desired_goal"]
        self.observation_space = Dict(spaces)


class Picture(Line):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space["observation"] = Box(0, 255, (8, 8, 3), np.uint8)


class Buttons(Line):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = Discrete(4)


class Unbounded(Line):
    def __init__(self) -> None:
        super().__init__(low=-np.inf, high=np.inf)


class Whole(Line):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = Box(0, 3, (2,), np.int64)


class Foggy(Line):
    """Observes nothing in the middle of an episode."""

    def _look(self):
        obs = super()._look()
        obs["observation"][:] += np.nan if self.time == 5 else 0
        return obs


class Fickle(Line):
    """Changes the desired goal in the middle of an episode."""

    def _look(self):
        self.goal = self.goal + (self.time == 5)
        return super()._look()


class Single(Line):
    def compute_reward(self, achieved, desired, info):
        return -1.0 if np.linalg.norm(achieved - desired) > 0.25 else 0.0


class Rewardless(Line):
    compute_reward = property()  # type: ignore[assignment]


class Silent(Line):
    """Dense rewards, and nothing that says what success is."""

    def __init__(self) -> None:
        super().__init__("dense", says=False)


class Walk(gym.Env):
    """A point on a line; the reward is how far right it is, and beyond 1 the episode ends."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float64)

    def __init__(self, low: float = -1.0, high: float = 1.0, prize: float = 1.0) -> None:
        self.action_space = Box(low, high, (1,), np.float32)
        self.low, self.high, self.prize = low, high, prize

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        self.place, self.unit = self.np_random.uniform(-0.5, 0.5), 0.0
        return np.array([self.place, self.unit]), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.unit = 2 * (float(action[0]) - self.low) / (self.high - self.low) - 1
        self.place += 0.25 * self.unit
        obs = np.array([self.place, self.unit])
        return obs, self.prize * self.place, self.place > 1, False, {}


class PrivilegedWalk(Walk):
    """The same; a third number, for critics only, is the sum of the rewards so far."""

    observation_space = Box(-np.inf, np.inf, (3,), np.float64)
    privileged_dim = 1

    def reset(self, **how: Any):
        self.earned = 0.0
        obs, info = super().reset(**how)
        return np.append(obs, self.earned), info

    def step(self, action):
        obs, reward, *rest = super().step(action)
        self.earned += reward
        return np.append(obs, self.earned), reward, *rest


class Mixed(Walk):
    """Observes its place, its side and its last action: a vector, a choice and a switch."""

    observation_space = Tuple([Box(-np.inf, np.inf, (2,)), Discrete(2, start=5), MultiBinary(1)])

    def reset(self, **how: Any):
        obs, info = super().reset(**how)
        return self._parts(obs), info

    def step(self, action):
        obs, *rest = super().step(action)
        return self._parts(obs), *rest

    def _parts(self, obs):
        return np.float32(obs), 5 + int(obs[0] > 0), np.int8([obs[1] > 0])


class Rooms(gym.Env):
    """A point on a line walks to a room, one of three, and sets a switch there."""

    goals = Dict(room=Discrete(3), switch=MultiBinary(1))
    observation_space = Dict(
        observation=Dict(place=Box(-2, 2, (1,)), goal=goals), achieved_goal=goals,
        desired_goal=goals,
    )  # fmt: skip
    action_space = Box(-1, 1, (2,))

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        self.place, self.on = self.np_random.uniform(-1, 1), 0
        self.goal = {"room": int(self.np_random.integers(3)), "switch": np.int8([1])}
        return self._look(), {}

    def _look(self):
        room = int(np.digitize(self.place, [-0.3, 0.3]))
        achieved = {"room": room, "switch": np.int8([self.on])}
        obs = {"place": np.float32([self.place]), "goal": achieved}
        return {"observation": obs, "achieved_goal": achieved, "desired_goal": self.goal}

    def step(self, action):
        self.place = float(np.clip(self.place + 0.5 * action[0], -2, 2))
        self.on = int(action[1] > 0)
        obs = self._look()
        reward = self.compute_reward(obs["achieved_goal"], self.goal, {})
        return obs, reward, False, False, {"is_success": reward == 0}

    def compute_reward(self, achieved, desired, info):
        same = achieved["room"] == desired["room"] and (achieved["switch"] == desired["switch"])[0]
        return float(same) - 1.0


class Wall(Walk):
    observation_space = Box(-1, 1, (2, 2), np.float64)


class Torn(Walk):
    def step(self, action):
        obs, *rest = super().step(action)
        return obs[:1], *rest


class Priceless(Walk):
    def __init__(self) -> None:
        super().__init__(prize=np.nan)


_CLASSES = (
    Line, Modules, Blind, Keyless, Picture, Buttons, Unbounded, Whole, Foggy, Fickle, Single,
    Rewardless, Silent, Drawn, Late, Restless, Mixed, Rooms, Walk, PrivilegedWalk, Wall, Torn,
    Priceless,
)  # fmt: skip
for _class in _CLASSES:
    gym.register(f"{_class.__name__}-v0", f"envs:{_class.__name__}", max_episode_steps=10)
gym.register("NoGoal-v0", "envs:NoGoal", max_episode_steps=10)
gym.register("Endless-v0", "envs:Line")
