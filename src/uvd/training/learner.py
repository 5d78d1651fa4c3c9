"""One seed's state, and the contract of the programs that train it.

A cycle plays some whole episodes, writes them into the replay buffer and makes the updates that
they pay for. Everything random derives from (seed, cycle number), so a run's result depends neither
on how its cycles are grouped into calls nor on where it was interrupted.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from uvd.agents.agent import Agent, Metrics, State
from uvd.collect.exploration import CollectConfig, Exploration
from uvd.core.episode import Episode
from uvd.core.errors import UserError
from uvd.core.policy import Policy
from uvd.core.replay import Ring, init_ring
from uvd.settings import RunSettings
from uvd.tasks.env import EnvTask
from uvd.tasks.task import Task
from uvd.training.select import Best, init_best, next_to_play, update_best


class Schedule(NamedTuple):
    """What a run's settings say about its cycles."""

    steps: int  # of each seed in a cycle
    updates: int  # of a cycle after the warm-up
    warm: int  # cycles without learning
    per_call: int  # cycles in one call of the program
    per_report: int  # cycles between reports
    total: int  # cycles of the run

    def updates_before(self, cycle: Any) -> Any:
        """Updates that were made before a cycle (negative during the warm-up)."""
        return (cycle - self.warm) * self.updates


class LearnerState(NamedTuple):
    """What a checkpoint holds of a seed."""

    agent: State
    acting: Policy | tuple[()]  # the policy that plays the next cycle, where workers play ahead
    best: Best | tuple[()]  # the best policy so far, where the algorithm scores cycles


class Learner(NamedTuple):
    """One seed's whole state between calls."""

    state: LearnerState
    ring: Ring
    key: jax.Array


class Program(NamedTuple):
    """What a run does, over learners stacked along a leading axis of seeds."""

    init: Callable[[int, int], Learner]  # (first seed, number of seeds)
    train: Callable[[Learner, jax.Array], tuple[Learner, Episode | None, Metrics]]
    """(learners, number of the first cycle) -> (learners, new episodes if any, metrics)"""
    replay: Callable[[Learner, Episode], Learner]  # writes logged episodes back into the buffer
    evaluate: Callable[[LearnerState, int, int], Metrics]
    """(state, purpose, number of episodes) -> each seed's scores over a fixed set of episodes"""
    close: Callable[[], None]  # ends the worker processes
    traces: Counter[str]  # how often each function was traced: more than once costs speed


def behaviour_policy(agent: Agent, state: LearnerState) -> Policy:
    """The policy that collects experience: the newest, or a candidate that is being confirmed."""
    policy = agent.policy(state.agent)
    if isinstance(state.best, Best):
        return policy._replace(net=next_to_play(state.best, policy.net))
    return policy


def best_policy(agent: Agent, state: LearnerState) -> Policy:
    """The policy that is evaluated and is the run's result: the best where there is a score."""
    policy = agent.policy(state.agent)
    return policy._replace(net=state.best.net) if isinstance(state.best, Best) else policy


def make_init(
    agent: Agent, task: Task | EnvTask, collect: CollectConfig, run: RunSettings, plays_ahead: bool
) -> Callable[[int, int], Learner]:
    """Fresh learners with empty replay buffers, for a range of seeds."""
    # Whole episodes of the newest cycle may hold up to one episode more than its quota.
    capacity = collect.capacity or (run.envs + 1) * task.horizon
    # An episode takes one row more than it has transitions.
    rows = -(-capacity // task.horizon) * (task.horizon + 1)

    def init_one(key: jax.Array) -> Learner:
        state = agent.init(jax.random.fold_in(key, 0))
        policy = agent.policy(state)
        best = init_best(policy.net, run.confirm_cycles) if agent.score else ()
        acting = policy if plays_ahead else ()
        ring = init_ring(rows, task.obs_dim, task.action_dim, task.goal_dim)
        return Learner(LearnerState(state, acting, best), ring, key)

    def init(first: int, seeds: int) -> Learner:
        keys = jnp.stack([jax.random.key(s) for s in range(first, first + seeds)])
        return jax.jit(jax.vmap(init_one))(keys)

    return init


def cycle_keys(key: jax.Array, cycle: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A seed's keys of one cycle, for playing and for learning."""
    key_play, key_learn = jax.random.split(jax.random.fold_in(key, cycle + 1))
    return key_play, key_learn


def learn_cycle(
    agent: Agent,
    schedule: Schedule,
    learner: Learner,
    cycle: jax.Array,
    played: Policy,
    counts: Any,
    confirm: int,
) -> tuple[LearnerState, Metrics]:
    """The state once the policy that `played` is scored and the updates are made.

    Metrics of the updates are `[updates]`; a score that does not count decides nothing.
    """
    state, ring, metrics = learner.state, learner.ring, {}
    if agent.score is not None and isinstance(state.best, Best):
        score = agent.score(state.agent, ring)
        best = update_best(state.best, played.net, score, counts, confirm)
        state = state._replace(best=best)
        metrics = {"select/score": score, "select/best": best.score}
    keys = jax.random.split(cycle_keys(learner.key, cycle)[1], schedule.updates)
    steps = schedule.updates_before(cycle) + jnp.arange(schedule.updates)
    inner, losses = jax.lax.scan(
        lambda s, xs: agent.update(s, ring, *xs), state.agent, (keys, steps)
    )
    return state._replace(agent=inner), {**metrics, **losses}


def exploration_at(collect: CollectConfig, updates: Any) -> Exploration:
    """Exploration of a policy that has made so many updates."""
    how = collect.exploration
    if not collect.late_updates:
        return how
    late = updates > collect.late_updates
    if isinstance(late, bool):
        return how._replace(noise=collect.late_noise if late else collect.noise)
    return how._replace(noise=jnp.where(late, collect.late_noise, collect.noise))


def state_arrays(state: Any) -> dict[str, np.ndarray]:
    """A pytree as named arrays."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def state_from_arrays(like: Any, arrays: dict[str, np.ndarray]) -> Any:
    """The pytree of `like`'s structure with the named arrays as leaves."""
    leaves, tree = jax.tree_util.tree_flatten_with_path(like)
    names = [jax.tree_util.keystr(path) for path, _ in leaves]
    for name, (_, leaf) in zip(names, leaves, strict=True):
        if name not in arrays or arrays[name].shape != leaf.shape:
            raise UserError(
                f"the checkpoint has no '{name}' of the right shape: made with other settings, "
                "or by another version"
            )
    return jax.tree_util.tree_unflatten(tree, [jnp.asarray(arrays[n]) for n in names])
