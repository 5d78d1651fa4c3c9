"""How well a policy does, over a fixed set of episodes: success, or return without goals."""

import jax
import jax.numpy as jnp

from uvd.collect.device import Exploration, rollouts
from uvd.core.policy import Policy, greedy
from uvd.core.replay import Episode
from uvd.tasks.task import Task


def successes(task: Task, episodes: Episode) -> tuple[jax.Array, jax.Array]:
    """Per episode: at the goal at the final step, and at the goal at any step after the start."""
    reached = task.success(episodes.achieved[:, 1:], episodes.goal[:, None])
    return reached[:, -1], reached.any(1)


def scores(task: Task, episodes: Episode) -> dict[str, jax.Array]:
    """Means over episodes: success by both measures; of a task without goals, the return."""
    if not task.goal_dim:
        return {"return": episodes.reward.sum(1).mean()}
    final, ever = successes(task, episodes)
    return {"success_final": jnp.mean(final), "success_ever": jnp.mean(ever)}


def evaluate_policy(
    task: Task, policy: Policy, key: jax.Array, episodes: int
) -> dict[str, jax.Array]:
    """Scores without exploration; the key fixes starts, goals and noise."""
    played = rollouts(task, Exploration(), greedy(policy), key, episodes)
    return {f"eval/{name}": x for name, x in scores(task, played).items()}
