"""Experience from JAX tasks: whole episodes, in the same program as the learner."""

import jax
import jax.numpy as jnp

from uvd.collect.exploration import RANDOM_ACTIONS, Exploration
from uvd.core.episode import Episode
from uvd.core.nets import init_mlp
from uvd.core.policy import Norm, Policy, act
from uvd.tasks.task import State, Task


def explore(
    how: Exploration, key: jax.Array, action: jax.Array, last: jax.Array, is_random: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The action to take, and whether it is a random one (`last`, `is_random`: the step before's).

    Random stretches last `hold` steps on average and fill a share `random` of the time; within one
    the action is held, which carries further than white noise does.
    """
    key_noise, key_go, key_start, key_new = jax.random.split(key, 4)
    begin = how.random / (how.random + how.hold * (1 - how.random))
    go_on = is_random & (jax.random.uniform(key_go) < 1 - 1 / how.hold)
    start = ~go_on & (jax.random.uniform(key_start) < begin)
    noisy = action + how.noise * jax.random.normal(key_noise, action.shape)
    noisy = jnp.where(how.store_unclipped, noisy, jnp.clip(noisy, -1, 1))
    fresh = jax.random.uniform(key_new, action.shape, minval=-1, maxval=1)
    return jnp.where(go_on, last, jnp.where(start, fresh, noisy)), go_on | start


def rollout(task: Task, how: Exploration, policy: Policy, key: jax.Array) -> Episode:
    """One episode of the task under the policy and its exploration."""
    key_reset, key_steps = jax.random.split(key)
    start = task.reset(key_reset)
    goal = task.goal(start)

    def step(carry: tuple[State, jax.Array, jax.Array], key: jax.Array):
        state, last, is_random = carry
        key_explore, key_task = jax.random.split(key)
        obs, achieved = task.observe(state), task.achieved(state)
        action = act(policy, obs, goal)
        if policy.log_std is None:
            action, is_random = explore(how, key_explore, action, last, is_random)
        else:  # a Gaussian policy draws its action
            noise = jax.random.normal(key_explore, action.shape)
            action = action + jnp.exp(policy.log_std) * noise
        # The drawn action is stored as it is; the task sees it within its bounds.
        clipped_action = jnp.clip(action, -1, 1)
        after = task.step(state, clipped_action, key_task)
        reward = jnp.zeros(()) if task.reward is None else task.reward(state, clipped_action, after)
        return (after, action, is_random), (obs, action, achieved, reward)

    first = (start, jnp.zeros(task.action_dim), jnp.zeros((), bool))
    (end, _, _), (obs, action, achieved, reward) = jax.lax.scan(
        step, first, jax.random.split(key_steps, task.horizon)
    )
    achieved = jnp.concatenate([achieved, task.achieved(end)[None]])
    no_success = jnp.zeros(task.horizon, bool)
    return Episode(
        obs=jnp.concatenate([obs, task.observe(end)[None]]),
        action=action,
        achieved=achieved,
        goal=goal,
        length=jnp.asarray(task.horizon, jnp.int32),
        terminated=jnp.zeros((), bool),
        success=task.success(achieved[1:], goal) if task.goal_dim else no_success,
        reward=reward,
    )


def rollouts(task: Task, how: Exploration, policy: Policy, key: jax.Array, n: int) -> Episode:
    """n episodes at once."""
    return jax.vmap(lambda k: rollout(task, how, policy, k))(jax.random.split(key, n))


def random_rollouts(
    task: Task, key: jax.Array, n: int = 100, how: Exploration = RANDOM_ACTIONS
) -> Episode:
    """Episodes without a policy: exploration around zero, by default uniformly random actions."""
    sizes = (task.obs_dim, task.obs_dim, task.goal_dim, task.goal_dim)
    identity = Norm(*(jnp.full(n, x) for n, x in zip(sizes, (0.0, 1.0, 0.0, 1.0), strict=True)))
    net = init_mlp(key, (task.obs_dim + task.goal_dim, task.action_dim), 0.0)
    return rollouts(task, how, Policy(net, identity), key, n)
