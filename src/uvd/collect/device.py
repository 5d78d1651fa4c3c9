"""Experience from JAX tasks: whole episodes, played beside the learner."""

import jax
import jax.numpy as jnp

from uvd.collect.exploration import Exploration
from uvd.core.policy import Policy, act
from uvd.core.replay import Episode
from uvd.tasks.task import State, Task


def explore(
    how: Exploration, key: jax.Array, action: jax.Array, last: jax.Array, wild: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The action really taken, and whether it is a random one (`last` and `wild`: one step ago).

    Random stretches last `hold` steps on average and fill a share `random` of the time; within one
    the action is held, which carries further than white noise does.
    """
    key_noise, key_go, key_start, key_new = jax.random.split(key, 4)
    begin = how.random / (how.random + how.hold * (1 - how.random))
    go_on = wild & (jax.random.uniform(key_go) < 1 - 1 / how.hold)
    start = ~go_on & (jax.random.uniform(key_start) < begin)
    noisy = action + how.noise * jax.random.normal(key_noise, action.shape)
    noisy = jnp.where(how.beyond, noisy, jnp.clip(noisy, -1, 1))
    fresh = jax.random.uniform(key_new, action.shape, minval=-1, maxval=1)
    return jnp.where(go_on, last, jnp.where(start, fresh, noisy)), go_on | start


def behave(
    how: Exploration, policy: Policy, key: jax.Array, obs: jax.Array, goal: jax.Array,
    last: jax.Array, wild: jax.Array,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """What is done: drawn by a policy that has a spread of its own, else the policy explores."""
    action = act(policy, obs, goal)
    if policy.log_std is not None:
        return action + jnp.exp(policy.log_std) * jax.random.normal(key, action.shape), wild
    if policy.noise is not None:
        how = how._replace(noise=policy.noise)
    return explore(how, key, action, last, wild)


def rollout(task: Task, how: Exploration, policy: Policy, key: jax.Array) -> Episode:
    """One episode of the task under the policy and its exploration."""
    key_reset, key_steps = jax.random.split(key)
    start = task.reset(key_reset)
    goal = task.goal(start)

    def step(carry: tuple[State, jax.Array, jax.Array], key: jax.Array):
        state, last, wild = carry
        key_explore, key_task = jax.random.split(key)
        obs, achieved = task.observe(state), task.achieved(state)
        action, wild = behave(how, policy, key_explore, obs, goal, last, wild)
        # What was drawn is kept as it was; the task sees it within its bounds.
        felt = jnp.clip(action, -1, 1)
        after = task.step(state, felt, key_task)
        reward = jnp.zeros(()) if task.reward is None else task.reward(state, felt, after)
        return (after, action, wild), (obs, action, achieved, reward)

    first = (start, jnp.zeros(task.action_dim), jnp.zeros((), bool))
    (end, _, _), (obs, action, achieved, reward) = jax.lax.scan(
        step, first, jax.random.split(key_steps, task.horizon)
    )
    achieved = jnp.concatenate([achieved, task.achieved(end)[None]])
    return Episode(
        jnp.concatenate([obs, task.observe(end)[None]]),
        action,
        achieved,
        goal,
        jnp.asarray(task.horizon, jnp.int32),
        jnp.zeros((), bool),
        task.success(achieved[1:], goal).any() if task.goal_dim else jnp.zeros((), bool),
        reward,
    )


def rollouts(task: Task, how: Exploration, policy: Policy, key: jax.Array, n: int) -> Episode:
    """n episodes at once."""
    return jax.vmap(lambda k: rollout(task, how, policy, k))(jax.random.split(key, n))
