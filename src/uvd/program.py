"""The compiled half of a run: collect and learn, many cycles in one call, all seeds at once.

A cycle plays `envs` whole episodes with the current policy, writes them into the ring and makes the
updates they pay for. Everything random derives from (seed, cycle number), so a run's result does
not depend on how its cycles are grouped into calls, nor on where it was interrupted.

This is the program of a task on the device; `host.py` has that of an environment.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from uvd.agents.agent import Agent, Demos, Metrics, Spec, State
from uvd.agents.td3 import TD3Config
from uvd.collect.device import Exploration, rollouts
from uvd.core.nets import init_mlp
from uvd.core.normalize import fit_norm, live_features, ranges
from uvd.core.policy import Norm, Policy
from uvd.core.replay import Episode, Ring, init_ring, insert_all
from uvd.evaluation import evaluate_policy, scores
from uvd.tasks.goalenv import EnvTask
from uvd.tasks.task import Task

RANDOM = Exploration(random=1.0)  # uniformly random actions


class Learner(NamedTuple):
    """One seed's whole state between calls."""

    agent: Any
    ring: Ring
    key: jax.Array


class Program(NamedTuple):
    """What a run does, over learners stacked along a leading axis of seeds."""

    init: Callable[[int, int], Learner]  # (first seed, number of seeds)
    train: Callable[[Learner, jax.Array], tuple[Learner, Episode, Metrics]]
    replay: Callable[[Learner, Episode], Learner]  # writes logged episodes back into the ring
    evaluate: Callable[[State, int, int], Metrics]  # (agents, which set, number of episodes)
    close: Callable[[], None]  # ends what runs beside
    traces: dict[str, int]  # how often each function was traced: once, or speed is lost


def aimless(td3: TD3Config) -> Exploration:
    """What plays the roll-outs that feature ranges are read off."""
    return Exploration(td3.range_noise) if td3.range_noise else RANDOM


def random_rollouts(task: Task, key: jax.Array, n: int = 100, how: Exploration = RANDOM) -> Episode:
    """Episodes without a policy: of uniformly random actions, unless told how."""
    sizes = (task.obs_dim, task.obs_dim, task.goal_dim, task.goal_dim)
    nothing = Norm(*(jnp.full(n, x) for n, x in zip(sizes, (0.0, 1.0, 0.0, 1.0), strict=True)))
    net = init_mlp(key, (task.obs_dim + task.goal_dim, task.action_dim), 0.0)
    return rollouts(task, how, Policy(net, nothing), key, n)


class Measured(NamedTuple):
    """What random roll-outs, and demonstrations beside them, tell of a task."""

    norm: Norm  # feature ranges
    live: tuple[int, ...]  # goal dimensions that vary
    live_obs: tuple[int, ...]  # observation columns that move


def measure(episodes: Episode, demos: Demos | None = None) -> Measured:
    """Reads stacked random roll-outs; with demonstrations, observations go by the range of both.

    What is never asked for (an object's height on a table) is no dimension of the density.
    """
    happened = np.arange(episodes.obs.shape[1]) <= np.asarray(episodes.length)[:, None]
    achieved, obs = episodes.achieved[happened], episodes.obs[happened]
    norm = fit_norm(obs, achieved, episodes.goal)
    if demos is not None:
        obs = np.concatenate([obs, demos.obs])
        shift, scale = (x.astype(np.float32) for x in ranges(obs))
        norm = norm._replace(obs_shift=shift, obs_scale=scale, far=None)
    live = live_features(episodes.goal) or live_features(achieved)
    return Measured(norm, live, live_features(obs))


def never(achieved: jax.Array, goal: jax.Array) -> jax.Array:
    """Success where there are no goals."""
    return jnp.zeros(achieved.shape[:-1], bool)


def make_spec(
    task: Task, demos: Demos | None = None, cycle: int = 0, how: Exploration = RANDOM
) -> Spec:
    """What the agent is told of its task; roll-outs without a policy give feature ranges."""
    play = jax.jit(lambda key: random_rollouts(task, key, how=how))
    norm, live, live_obs = measure(jax.tree.map(np.asarray, play(jax.random.key(0))), demos)
    goals = bool(task.goal_dim)
    return Spec(
        task.obs_dim, task.action_dim, task.goal_dim, task.success if goals else never, norm, live,
        task.radius if goals else None, rewards=task.reward is not None, demos=demos,
        live_obs=live_obs, cycle=cycle,
    )  # fmt: skip


def make_init(
    agent: Agent, task: Task | EnvTask, spec: Spec, capacity: int
) -> Callable[[int, int], Learner]:
    """Fresh learners with empty rings, for a range of seeds."""
    # An episode takes one row more than it has transitions.
    rows = -(-capacity // task.horizon) * (task.horizon + 1)

    def init_one(key: jax.Array) -> Learner:
        ring = init_ring(rows, task.obs_dim, task.action_dim, task.goal_dim)
        return Learner(agent.init(jax.random.fold_in(key, 0), spec), ring, key)

    def init(first: int, seeds: int) -> Learner:
        keys = jnp.stack([jax.random.key(s) for s in range(first, first + seeds)])
        return jax.jit(jax.vmap(init_one))(keys)

    return init


def cycle_keys(key: jax.Array, cycle: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A seed's keys of one cycle, for playing and for learning."""
    key_play, key_learn = jax.random.split(jax.random.fold_in(key, cycle + 1))
    return key_play, key_learn


def make_learn(agent: Agent, updates: int, warm: int) -> Callable[..., tuple[State, Metrics]]:
    """The updates of one cycle: (state, ring, key, cycle) -> (state, metrics)."""

    def learn(state: State, ring: Ring, key: jax.Array, cycle: jax.Array) -> tuple[State, Metrics]:
        keys = jax.random.split(key, updates)
        steps = (cycle - warm) * updates + jnp.arange(updates)
        return jax.lax.scan(lambda s, xs: agent.update(s, ring, *xs), state, (keys, steps))

    return learn


def make_program(
    agent: Agent,
    task: Task,
    spec: Spec,
    td3: TD3Config,
    envs: int,
    cycles: int,
    warm: int,
    on_policy: bool = False,
) -> Program:
    """Binds an agent to a task: `cycles` per call, `envs` episodes a cycle, the first `warm` of
    them without learning (their losses read zero)."""
    how = Exploration(td3.noise, td3.random, td3.hold, td3.beyond)
    updates = 1 if on_policy else round(envs * task.horizon * td3.updates_per_step)
    learn = make_learn(agent, updates, warm)
    traces: dict[str, int] = {}

    def play(
        learner: Learner, key: jax.Array, cycle: jax.Array
    ) -> tuple[Learner, Episode, Metrics]:
        now = how
        if td3.warmup_random:
            now = jax.tree.map(lambda a, b: jnp.where(cycle < warm, a, b), RANDOM, how)
        episodes = rollouts(task, now, agent.policy(learner.agent), key, envs)
        metrics = {f"collect/{name}": x for name, x in scores(task, episodes).items()}
        if task.goal_dim:
            shift = jnp.linalg.norm(episodes.achieved[:, -1] - episodes.achieved[:, 0], axis=-1)
            metrics["collect/moved"] = (shift > 1e-3).mean()
        return learner._replace(ring=insert_all(learner.ring, episodes)), episodes, metrics

    def one_cycle(learner: Learner, cycle: jax.Array):
        key_play, key_learn = cycle_keys(learner.key, cycle)
        learner, episodes, collected = play(learner, key_play, cycle)

        def burst(state: Any) -> tuple[Any, Metrics]:
            state = agent.judged(state, agent.policy(state), learner.ring)  # it has just played
            return learn(state, learner.ring, key_learn, cycle)

        nothing = jax.tree.map(
            lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(burst, learner.agent)[1]
        )
        state, metrics = jax.lax.cond(cycle >= warm, burst, lambda s: (s, nothing), learner.agent)
        return learner._replace(agent=state), (episodes, {**collected, **metrics})

    def train(learner: Learner, first: jax.Array) -> tuple[Learner, Episode, Metrics]:
        traces["train"] = traces.get("train", 0) + 1
        # Seeds are mapped inside the scan over cycles, so that the cycle's number stays shared.
        learner, (episodes, metrics) = jax.lax.scan(
            lambda ln, c: jax.vmap(one_cycle, (0, None))(ln, c), learner, first + jnp.arange(cycles)
        )
        # [cycle, seed, episode, ...] -> [seed, all episodes in order, ...]
        stacked = jax.tree.map(
            lambda x: x.swapaxes(0, 1).reshape(x.shape[1], cycles * envs, *x.shape[3:]), episodes
        )
        return learner, stacked, metrics

    def evaluate(state: State, purpose: int, episodes: int) -> Metrics:
        traces["evaluate"] = traces.get("evaluate", 0) + 1
        key = jax.random.key(purpose)
        return jax.vmap(lambda s: evaluate_policy(task, agent.result(s), key, episodes))(state)

    def refill(learner: Learner, episodes: Episode) -> Learner:
        return learner._replace(ring=jax.vmap(insert_all)(learner.ring, episodes))

    return Program(
        make_init(agent, task, spec, td3.capacity),
        jax.jit(train, donate_argnums=0),
        jax.jit(refill, donate_argnums=0),
        jax.jit(evaluate, static_argnums=(1, 2)),
        lambda: None,
        traces,
    )
