"""The program of a JAX task: many cycles of playing and learning in one compiled call."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np

from uvd.agents.agent import Agent, Metrics
from uvd.collect.device import random_rollouts, rollouts
from uvd.collect.exploration import RANDOM_ACTIONS, CollectConfig, Exploration
from uvd.core.episode import Episode
from uvd.core.policy import greedy
from uvd.core.replay import insert_all
from uvd.settings import RunSettings
from uvd.tasks.task import Task
from uvd.training.evaluate import collected, scores
from uvd.training.learner import (
    Learner,
    LearnerState,
    Program,
    Schedule,
    behaviour_policy,
    best_policy,
    cycle_keys,
    exploration_at,
    learn_cycle,
    make_init,
)


def probe_task(task: Task, how: Exploration) -> Episode:
    """Stacked roll-outs without a policy, on which feature ranges are measured."""
    play = jax.jit(lambda key: random_rollouts(task, key, how=how))
    return jax.tree.map(np.asarray, play(jax.random.key(0)))


def make_device_program(
    agent: Agent, task: Task, collect: CollectConfig, run: RunSettings, schedule: Schedule
) -> Program:
    """Binds an agent to a task. Losses of warm-up cycles read zero."""
    traces: Counter[str] = Counter()

    def play(learner: Learner, cycle: jax.Array) -> tuple[Learner, Episode, Metrics]:
        how = exploration_at(collect, schedule.updates_before(cycle))
        if collect.warmup_random:
            warm = cycle < schedule.warm
            how = jax.tree.map(lambda a, b: jnp.where(warm, a, b), RANDOM_ACTIONS, how)
        policy, key = behaviour_policy(agent, learner.state), cycle_keys(learner.key, cycle)[0]
        episodes = rollouts(task, how, policy, key, run.envs)
        rows = jax.vmap(lambda episode: collected(task, episode))(episodes)
        learner = learner._replace(ring=insert_all(learner.ring, episodes))
        return learner, episodes, {name: x.mean() for name, x in rows.items()}

    def one_cycle(learner: Learner, cycle: jax.Array):
        learner, episodes, rows = play(learner, cycle)

        def learn(learner: Learner) -> tuple[LearnerState, Metrics]:
            played = behaviour_policy(agent, learner.state)
            return learn_cycle(agent, schedule, learner, cycle, played, True, run.confirm_cycles)

        def wait(learner: Learner) -> tuple[LearnerState, Metrics]:
            like = jax.eval_shape(learn, learner)[1]
            return learner.state, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)

        state, metrics = jax.lax.cond(cycle >= schedule.warm, learn, wait, learner)
        return learner._replace(state=state), (episodes, {**rows, **metrics})

    def train(learner: Learner, first: jax.Array) -> tuple[Learner, Episode, Metrics]:
        traces["train"] += 1
        # Seeds are mapped inside the scan over cycles, so that the cycle's number stays shared.
        learner, (episodes, metrics) = jax.lax.scan(
            lambda ln, c: jax.vmap(one_cycle, (0, None))(ln, c),
            learner,
            first + jnp.arange(schedule.per_call),
        )

        def in_order(x: jax.Array) -> jax.Array:
            """[cycle, seed, episode, ...] -> [seed, all episodes in order, ...]"""
            x = x.swapaxes(0, 1)
            return x.reshape(x.shape[0], schedule.per_call * run.envs, *x.shape[3:])

        return learner, jax.tree.map(in_order, episodes), metrics

    def evaluate(state: LearnerState, purpose: int, episodes: int) -> Metrics:
        traces["evaluate"] += 1
        key = jax.random.key(purpose)  # fixes starts, goals and noise

        def one(state: LearnerState) -> Metrics:
            policy = greedy(best_policy(agent, state))
            played = rollouts(task, Exploration(), policy, key, episodes)
            rows = jax.vmap(lambda episode: scores(task, episode))(played)
            return {f"eval/{name}": x.mean() for name, x in rows.items()}

        return jax.vmap(one)(state)

    def refill(learner: Learner, episodes: Episode) -> Learner:
        return learner._replace(ring=jax.vmap(insert_all)(learner.ring, episodes))

    return Program(
        init=make_init(agent, task, collect, run, plays_ahead=False),
        train=jax.jit(train, donate_argnums=0),
        replay=jax.jit(refill, donate_argnums=0),
        evaluate=jax.jit(evaluate, static_argnums=(1, 2)),
        close=lambda: None,
        traces=traces,
    )
