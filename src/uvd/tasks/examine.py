"""The examination of a Gymnasium environment: what does not fit is refused in one line.

Observations and goals are boxes of one dimension, actions a bounded one, and there is a time limit;
an episode may end before it. What is found out becomes an `EnvTask`, before training starts.
"""

from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict

from uvd.core.config import require
from uvd.core.errors import UserError, refused
from uvd.core.normalize import find_achieved
from uvd.tasks.env import KEYS, EnvTask, Reward, batch_reward, is_success
from uvd.tasks.flatten import flat_env, has_goals

EPISODES, STEPS = 12, 16  # of random actions, in which an environment with goals is examined
PAIRS = 4096  # of goals, on which its rewards are examined


def examine(name: str, env: gym.Env) -> EnvTask:
    """The environment as a task, if it can be trained on."""
    env = flat_env(env)
    goals = has_goals(env.observation_space)
    return _examine_goals(name, env) if goals else _examine_rewards(name, env)


def _examine_rewards(name: str, env: gym.Env) -> EnvTask:
    space = vector_space(env.observation_space, f"{name} cannot be trained on: its observation is")
    frame = _frame(name, env)
    with refused(f"{name} does not play"):
        starts, seen, rewards, _ = _random_steps(env, 1)
        shapes = set(map(np.shape, starts + seen))
        rewards = list(map(float, rewards))
    _require_shapes(name, shapes == {space.shape})
    require(bool(np.isfinite(rewards).all()), f"{name} gives rewards that are not finite")
    privileged = int(getattr(env.unwrapped, "privileged_dim", 0))
    return EnvTask(**frame, obs_dim=space.shape[0], privileged_dim=privileged)


def _examine_goals(name: str, env: gym.Env) -> EnvTask:
    space, refusal = env.observation_space, f"{name} is not a goal environment:"
    parts = space.spaces if isinstance(space, Dict) else {}
    shapes = []
    for key in KEYS:
        require(key in parts, f"{refusal} its observation has no '{key}'")
        shapes.append(vector_space(parts[key], f"{name} cannot be trained on: its {key} is").shape)
    require(shapes[1] == shapes[2], f"{refusal} achieved_goal and desired_goal differ in shape")
    require(env.has_wrapper_attr("compute_reward"), f"{refusal} it has no compute_reward")
    frame = _frame(name, env)
    with refused(f"{name} does not play"):
        starts, seen, _, reports = _random_steps(env, EPISODES)
        # In float32, as the replay buffer holds them.
        rows = [np.array([obs[key] for obs in seen], np.float32) for key in KEYS]
        steady = all(np.array_equal(a[KEYS[2]], b[KEYS[2]]) for a, b in zip(starts, seen))
    _require_shapes(name, [x.shape[1:] for x in rows] == shapes)
    for key, x in zip(KEYS, rows):
        require(bool(np.isfinite(x).all()), f"{name}: its {key} is not finite")
    require(steady, f"{name} changes the desired goal within an episode")
    obs, achieved, desired = rows
    reported = None if None in reports else np.array(reports, bool)
    reward = _find_reward(name, env, achieved, desired, reported)
    require(
        reported is not None or reward.sparse or reward.radius is not None,
        f"{name} does not say what success is: "
        "neither info['is_success'] nor rewards of two values",
    )
    in_obs = find_achieved(obs, achieved) is not None
    (obs_dim,), (goal_dim,), _ = shapes
    return EnvTask(
        **frame,
        obs_dim=obs_dim if in_obs else obs_dim + goal_dim,
        goal_dim=goal_dim,
        reward=reward,
        achieved_in_obs=in_obs,
    )


def vector_space(space: gym.Space, refusal: str) -> Box:
    """The space itself if it is a box of one dimension."""
    if isinstance(space, Box) and len(space.shape) == 1:
        return space
    kind = f"a box of shape {space.shape}" if isinstance(space, Box) else str(space)[:80]
    raise UserError(f"{refusal} {kind}, not a box of one dimension")


def _require_shapes(name: str, same: bool) -> None:
    require(same, f"{name} gives observations of other shapes than its observation_space says")


def _frame(name: str, env: gym.Env) -> dict[str, Any]:
    """What an `EnvTask` holds with goals or without: id, registration, horizon, action bounds."""
    refusal = f"{name} cannot be trained on: its actions are"
    actions = vector_space(env.action_space, refusal)
    require(actions.is_bounded(), f"{refusal} unbounded")
    is_real = np.issubdtype(actions.dtype, np.floating)
    require(is_real, f"{refusal} of {actions.dtype}, not real numbers")
    if env.spec is None or env.spec.max_episode_steps is None:
        raise UserError(
            f"{name} has no time limit: register it with max_episode_steps, "
            "or give --task-settings max_episode_steps=N"
        )
    low, high = (bound.astype(np.float64) for bound in (actions.low, actions.high))
    horizon = env.spec.max_episode_steps
    return {"id": name, "spec": env.spec, "horizon": horizon, "low": low, "high": high}


def _random_steps(env: gym.Env, episodes: int) -> list[list[Any]]:
    """Short episodes of random actions.

    Of each step: the first observation of its episode, the one after it, its reward, and whether
    the environment reports success (None: it does not say).
    """
    rng, actions = np.random.default_rng(0), env.action_space
    assert isinstance(actions, Box)
    steps = []
    for seed in range(episodes):
        start = deepcopy(env.reset(seed=seed)[0])  # some environments write into what they returned
        for _ in range(STEPS):
            action = rng.uniform(actions.low, actions.high).astype(actions.dtype)
            obs, reward, terminated, truncated, info = env.step(action)
            steps.append((start, deepcopy(obs), reward, is_success(info)))
            if terminated or truncated:
                break
    return list(map(list, zip(*steps)))


def _find_reward(
    name: str, env: gym.Env, achieved: np.ndarray, desired: np.ndarray, success: np.ndarray | None
) -> Reward:
    """Examines `compute_reward` on pairs of sampled goals, and of goals at all distances.

    The samples are N rows of goals, and the success that was reported for them.
    """
    rng, refusal = np.random.default_rng(1), f"{name}: compute_reward"
    goals = np.concatenate([achieved, desired])
    span = max(float(np.ptp(goals, 0).max()), 1e-3)

    def draw(x: np.ndarray, n: int = PAIRS // 4) -> np.ndarray:
        return x[rng.integers(len(x), size=n)]

    near = draw(goals, PAIRS // 2)
    way = rng.standard_normal(near.shape)
    way *= (span * 10 ** rng.uniform(-4, 0.3, len(way)) / np.linalg.norm(way, axis=-1))[:, None]
    way[:16] = 0  # goals that are exactly achieved
    x = np.concatenate([(near + way).astype(np.float32), draw(goals), draw(achieved)])
    y = np.concatenate([near, draw(desired), draw(achieved)])
    with refused(f"{refusal} fails on batches"):
        single = [batch_reward(env, a[None], g[None])[0] for a, g in zip(x[:8], y)]
        rewards = batch_reward(env, x, y)
    require(bool(np.isfinite(rewards).all()), f"{refusal} gives rewards that are not finite")
    same = np.allclose(single, rewards[:8])
    require(same, f"{refusal} gives batches other rewards than single goals")
    low, high = float(rewards.min()), float(rewards.max()) + 0.0  # no negative zero
    require(low != high, f"{refusal} gives {low:g} for every pair of goals")
    squared = ((x - y) ** 2).sum(-1)
    declared = getattr(env.unwrapped, "distance_threshold", None)
    radius = None if declared is None else float(declared)
    if len(np.unique(rewards)) == 2:
        for guess in (radius, _threshold(env, y[0], span, high)):
            if guess is not None and ((squared <= guess**2) == (rewards == high)).all():
                return Reward(low, high, True, guess)
        return Reward(low, high, True, None)
    if radius is not None and success is not None:
        within = ((achieved - desired) ** 2).sum(-1) <= radius**2
        radius = radius if (within == success).all() else None
    distance = bool(np.allclose(rewards, -np.sqrt(squared), atol=1e-5))
    # Training may meet goals further apart than these, but no reward above that of success.
    width = high - low
    best = high if (rewards[:16] == high).all() else high + width
    return Reward(low - width, best, False, radius, distance)


def _threshold(env: gym.Env, goal: np.ndarray, span: float, high: float) -> float | None:
    """The distance at which success ends in one direction, by bisection."""
    way = np.ones(len(goal)) / np.sqrt(len(goal))

    def reached(distance: float) -> bool:
        return bool(batch_reward(env, (goal + distance * way)[None], goal[None])[0] == high)

    inside, outside = 0.0, span
    while reached(outside):
        inside, outside = outside, 2 * outside
        if outside > 1e6 * span:
            return None
    if not reached(inside):
        return None
    while (middle := (inside + outside) / 2) not in (inside, outside):
        inside, outside = (middle, outside) if reached(middle) else (inside, middle)
    # The nearest short number is what the author wrote; at the edge itself rounding decides.
    short = float(f"{outside:.6g}")
    return short if abs(short - outside) < 1e-7 * span else outside
