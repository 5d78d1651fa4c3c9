"""How well a policy reaches its goals, over a fixed set of episodes."""

import jax
import jax.numpy as jnp

from uvd.collect.device import Exploration, rollouts
from uvd.core.policy import Policy
from uvd.core.replay import Episode
from uvd.tasks.task import Task


def successes(task: Task, episodes: Episode) -> tuple[jax.Array, jax.Array]:
    """Per episode: at the goal at the final step, and at the goal at any step after the start."""
    reached = task.success(episodes.achieved[:, 1:], episodes.goal[:, None])
    return reached[:, -1], reached.any(1)


def evaluate_policy(
    task: Task, policy: Policy, key: jax.Array, episodes: int
) -> dict[str, jax.Array]:
    """Success by both measures without exploration; the key fixes starts, goals and noise."""
    final, ever = successes(task, rollouts(task, Exploration(), policy, key, episodes))
    return {"eval/success_final": jnp.mean(final), "eval/success_ever": jnp.mean(ever)}
