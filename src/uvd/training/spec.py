"""What an algorithm knows of its task, measured on roll-outs without a policy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from uvd.agents.agent import GoalTest, Spec
from uvd.core.episode import DemoSteps, Episode
from uvd.core.normalize import fit_norm, ranges, varying_columns
from uvd.tasks.env import EnvTask, batch_reward, reward_env
from uvd.tasks.task import Task


def make_spec(
    task: Task | EnvTask, probe: Episode, demos: DemoSteps | None, cycle_steps: int
) -> Spec:
    """The task's sizes, and feature ranges of stacked roll-outs `[episode, ...]`.

    With demonstrations, observations are scaled by the range of both. A goal dimension that does
    not vary in the goals that are asked for (an object's height on a table) is left out.
    """
    achieved, obs = probe.achieved[happened(probe)], probe.obs[happened(probe)]
    norm = fit_norm(obs, achieved, probe.goal)
    if demos is not None:
        obs = np.concatenate([obs, demos.obs])
        shift, scale = (x.astype(np.float32) for x in ranges(obs))
        norm = norm._replace(obs_shift=shift, obs_scale=scale, obs_clip=None)
    success: GoalTest = never
    reward, reward_range = None, (-1.0, 0.0)
    if isinstance(task, EnvTask) and task.reward:
        success, reward = make_rewards(task)
        reward_range = (task.reward.low, task.reward.high)
    elif isinstance(task, Task) and task.goal_dim:
        success = task.success
    return Spec(
        obs_dim=task.obs_dim,
        action_dim=task.action_dim,
        goal_dim=task.goal_dim,
        success=success,
        norm=norm,
        varying_goal=varying_columns(probe.goal) or varying_columns(achieved),
        radius=task.radius if task.goal_dim else None,
        reward=reward,
        reward_range=reward_range,
        has_rewards=not task.goal_dim,
        demos=demos,
        varying_obs=varying_columns(obs),
        privileged_dim=task.privileged_dim,
        cycle_steps=cycle_steps,
        horizon=task.horizon,
    )


def happened(probe: Episode) -> np.ndarray:
    """Which rows of stacked, padded roll-outs are there, `[episode, row]`."""
    return np.arange(probe.obs.shape[1]) <= np.asarray(probe.length)[:, None]


def never(achieved: jax.Array, goal: jax.Array) -> jax.Array:
    """Success where there are no goals."""
    return jnp.zeros(achieved.shape[:-1], bool)


def make_rewards(task: EnvTask) -> tuple[GoalTest, GoalTest]:
    """Success and reward of (achieved, goal) inside compiled code.

    Where the environment's own reward was found to be a matter of distance, that is written in JAX;
    otherwise compiled code calls back to it with whole batches.
    """
    rule = task.reward
    assert rule

    def ask(achieved: jax.Array, goal: jax.Array) -> Any:
        env = reward_env(task)
        shape = jnp.broadcast_shapes(achieved.shape, goal.shape)[:-1]
        return jax.pure_callback(
            lambda a, g: batch_reward(env, np.asarray(a), np.asarray(g)),
            jax.ShapeDtypeStruct(shape, jnp.float32),
            achieved,
            goal,
            vmap_method="broadcast_all",
        )

    def success(achieved: jax.Array, goal: jax.Array) -> jax.Array:
        if rule.radius is None and rule.sparse:
            return ask(achieved, goal) > (rule.low + rule.high) / 2
        return task.success(achieved, goal)

    def reward(achieved: jax.Array, goal: jax.Array) -> jax.Array:
        if rule.sparse and rule.radius is not None:
            return jnp.where(success(achieved, goal), rule.high, rule.low)
        if rule.distance:
            return -jnp.sqrt(((achieved - goal) ** 2).sum(-1))
        return ask(achieved, goal)

    return success, reward
