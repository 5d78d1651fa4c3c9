"""The program of an environment: worker processes play while the device learns.

The episodes of cycle c + 1 are played while cycle c is learned from, by the policy as it was before
that: as learned through cycle c - 1. What plays next is part of the agent's state (`Lagged`), so a
resumed run plays what the killed one was playing. The numbers of steps and episodes so far are read
off the ring. Nothing depends on how fast who was: the result is the same for any number of workers,
and where playing and learning share a few cores, so take turns.

Every cycle brings each seed to its quota of `envs * horizon` steps in whole episodes; what the last
of them made too many is owed less in the next, so updates and steps keep their ratio exactly.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from uvd.agents.agent import Agent, Demos, Metrics, Spec, State
from uvd.agents.td3 import TD3Config
from uvd.collect.exploration import Exploration
from uvd.collect.worker import PROBE, TRAIN, Job, Played
from uvd.collect.workers import Policies, Workers, cores
from uvd.core.policy import Policy, greedy
from uvd.core.replay import Episode, Record, Ring, insert_all, stacked
from uvd.program import RANDOM, Learner, Program, cycle_keys, make_init, make_learn, measure, never
from uvd.settings import RunSettings
from uvd.tasks.goalenv import EnvTask, GoalTask, batch_reward, reward_env
from uvd.tasks.rewardenv import RewardTask

PROBE_STEPS = 5000  # random steps from which feature ranges are measured
FEW_CORES = 4


class Lagged(NamedTuple):
    """An agent's state, and the policy that plays the next cycle's episodes."""

    state: Any
    behind: Policy


def lagged(agent: Agent) -> Agent:
    """The same agent; its state also holds what the workers are playing."""

    def init(key: jax.Array, spec: Spec) -> Lagged:
        state = agent.init(key, spec)
        return Lagged(state, agent.policy(state))

    def update(state: Lagged, ring: Ring, key: jax.Array, step: jax.Array):
        inner, metrics = agent.update(state.state, ring, key, step)
        return state._replace(state=inner), metrics

    def policy(state: Lagged) -> Policy:
        return agent.policy(state.state)

    def judge(state: Lagged, player: Policy, ring: Ring, settled: jax.Array | bool) -> Lagged:
        return state._replace(state=agent.judged(state.state, player, ring, settled))

    return Agent(init, update, policy, lambda state: agent.result(state.state), judge)


def record(task: EnvTask, episodes: Sequence[Played]) -> Record:
    """One seed's episodes as the log keeps them: lengths padded to the longest."""
    length = np.array([len(played.action) for played in episodes], np.int32)

    def padded(arrays: Sequence[np.ndarray]) -> np.ndarray:
        out = np.zeros((len(arrays), max(map(len, arrays)), *arrays[0].shape[1:]), np.float32)
        for row, x in zip(out, arrays, strict=True):
            row[: len(x)] = x
        return out

    return {
        "obs": padded([p.obs for p in episodes]),
        "action": padded([p.action for p in episodes]),
        "achieved": padded([p.achieved for p in episodes]),
        "goal": np.stack([p.goal for p in episodes]),
        "length": length,
        "terminated": np.array([p.terminated for p in episodes]),
        "reached": np.array([bool(scores(task, p).get("success_ever")) for p in episodes]),
        "reward": padded([p.reward for p in episodes]),
    }


def successes(task: GoalTask, played: Played) -> np.ndarray:
    """Success after each step: as the environment says, or as its rewards do."""
    if played.success is not None:
        return played.success
    return np.asarray(task.success(played.achieved[1:], played.goal))


def scores(task: EnvTask, played: Played) -> dict[str, Any]:
    """Success at the final step and at any; of a task without goals, the return."""
    if not isinstance(task, GoalTask):
        return {"return": played.reward.sum(dtype=np.float64)}
    success = successes(task, played)
    return {"success_final": success[-1], "success_ever": success.any()}


def moved(task: EnvTask, played: Played) -> bool:
    """Whether what is to be moved was: by a fifth of the success radius, where there is one.

    FetchSlide's puck drifts by some millimetres untouched.
    """
    radius = task.reward.radius if isinstance(task, GoalTask) else None
    far = max(1e-3, 0.2 * (radius or 0.0))
    return bool(np.linalg.norm(played.achieved[-1] - played.achieved[0]) > far)


_PROBED: dict[tuple[EnvTask, Exploration], Episode] = {}


def make_env_spec(
    task: EnvTask,
    workers: Workers,
    demos: Demos | None = None,
    cycle: int = 0,
    how: Exploration = RANDOM,
) -> Spec:
    """What the agent is told of an environment; roll-outs without a policy give feature ranges."""
    if (task, how) not in _PROBED:  # a process often trains and then loads
        number = min(max(PROBE_STEPS // task.horizon, 10), 100)
        jobs = [Job(0, 0, PROBE, i, how) for i in range(number)]
        episodes = stacked([record(task, workers.play(jobs, Policies()))], task.horizon)
        _PROBED[task, how] = Episode(*(x[0] for x in episodes))
    norm, live, live_obs = measure(_PROBED[task, how], demos)
    spec = Spec(
        task.obs_dim, task.action_dim, task.goal_dim, never, norm, live, rewards=True,
        demos=demos, live_obs=live_obs, cycle=cycle,
    )  # fmt: skip
    if isinstance(task, RewardTask):
        return replace(spec, told=task.told)
    assert isinstance(task, GoalTask)
    success, reward = make_rewards(task)
    return replace(
        spec, success=success, radius=task.reward.radius, reward=reward, rewards=False,
        reward_range=(task.reward.low, task.reward.high),
    )  # fmt: skip


def make_rewards(task: GoalTask) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Success and reward of (achieved, goal) inside compiled code.

    Where the environment's own reward was found to be a matter of distance, that is written in JAX;
    otherwise compiled code calls back to it with whole batches.
    """
    rule = task.reward

    def ask(achieved: jax.Array, goal: jax.Array) -> jax.Array:
        env = reward_env(task)
        shape = jnp.broadcast_shapes(achieved.shape, goal.shape)[:-1]
        return jax.pure_callback(
            lambda a, g: batch_reward(env, np.asarray(a), np.asarray(g)),
            jax.ShapeDtypeStruct(shape, jnp.float32), achieved, goal, vmap_method="broadcast_all",
        )  # fmt: skip

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


def make_env_program(
    agent: Agent,
    task: EnvTask,
    spec: Spec,
    td3: TD3Config,
    run: RunSettings,
    total: int,
    warm: int,
    workers: Workers,
    on_policy: bool = False,
) -> Program:
    """Binds a `lagged` agent to an environment: one cycle a call, `total` cycles in all.

    `on_policy`: nothing plays while the device learns, and who plays is who learns.
    """
    how = Exploration(td3.noise, td3.random, td3.hold, td3.beyond)
    quota = run.envs * task.horizon
    updates = 1 if on_policy else round(quota * td3.updates_per_step)
    burst = make_learn(agent, updates, warm)
    flights: dict[int, Future] = {}  # the episodes of a cycle, in the making
    # On few cores, playing would only hold up the products of the learner: 5 % on two.
    in_turn = jax.default_backend() == "cpu" and cores() <= FEW_CORES
    traces: dict[str, int] = {}

    def traced(name: str) -> None:
        traces[name] = traces.get(name, 0) + 1

    def learn(state: Lagged, ring: Ring, key: jax.Array, cycle: jax.Array):
        traced("train")
        settled = quota * cycle >= run.late_steps

        def one(state: Lagged, ring: Ring, key: jax.Array) -> tuple[Lagged, Metrics]:
            # What plays from here on is the policy as it was before all that follows.
            after = agent.policy(state)
            state = agent.judged(state, after if on_policy else state.behind, ring, settled)
            state = state._replace(behind=after)
            return burst(state, ring, cycle_keys(key, cycle)[1], cycle)

        return jax.vmap(one)(state, ring, key)

    def insert(ring: Ring, episodes: Episode) -> Ring:
        traced("insert")
        return jax.vmap(insert_all)(ring, episodes)

    learn_jit = jax.jit(learn, donate_argnums=0)
    insert_jit = jax.jit(insert, donate_argnums=0)
    policy_jit = jax.jit(jax.vmap(agent.policy))
    result_jit = jax.jit(jax.vmap(agent.result))

    def write(ring: Ring, episodes: Episode) -> Ring:
        # In pieces of one size, the last one padded, so that one trace serves any number.
        for i in range(0, episodes.length.shape[1], run.envs):
            piece = Episode(*(x[:, i : i + run.envs] for x in episodes))
            none = (0, run.envs - piece.length.shape[1])
            padded = (np.pad(x, [(0, 0), none, *[(0, 0)] * (x.ndim - 2)]) for x in piece)
            ring = insert_jit(ring, Episode(*padded))
        return ring

    def packed(policy: Policy) -> Policies:
        """Stacked policies, one of each seed, ready for the workers."""
        host = jax.tree.map(np.asarray, policy)
        seeds = len(host.net.biases[0])
        return Policies([jax.tree.map(lambda x, i=i: x[i], host) for i in range(seeds)])

    def collect(policies: Policies, ring: Ring, cycle: int) -> Callable[[], list[list[Played]]]:
        """How to play a cycle's episodes; the ring holds all that were played before."""
        done = np.asarray(ring.last)
        # An episode has a row more than it has steps.
        first = (np.asarray(ring.rows_written) - done).tolist()
        owed = (quota * (cycle + 1) - done).tolist()
        now = RANDOM if td3.warmup_random and cycle < warm else how
        late = 0 < run.late_steps <= quota * cycle
        cut = run.late_episode_steps if late else run.episode_steps

        def work() -> list[list[Played]]:
            lists: list[list[Played]] = [[] for _ in owed]
            left = list(owed)
            while max(left) > 0:
                begun = [n + len(played) for n, played in zip(first, lists)]
                jobs = [
                    Job(who, run.first_seed + who, TRAIN, begun[who] + i, now, cut)
                    for who in range(len(lists))
                    for i in range(-(-left[who] // (cut or task.horizon)))
                ]
                for job, played in zip(jobs, workers.play(jobs, policies), strict=True):
                    lists[job.who].append(played)
                    left[job.who] -= len(played.action)
            return lists

        return work

    def train(learner: Learner, first: jax.Array) -> tuple[Learner, Episode, Metrics]:
        cycle = int(first)
        flight = flights.pop(cycle, None)
        # Nothing of the learner was touched where this raises: it can be saved as it is.
        if flight is None:
            player = policy_jit(learner.agent) if on_policy else learner.agent.behind
            lists = collect(packed(player), learner.ring, cycle)()
        else:
            lists = flight.result()
        episodes = stacked([record(task, played) for played in lists], task.horizon)
        ring = write(learner.ring, episodes)
        if cycle + 1 < total and not on_policy:
            policies = packed(policy_jit(learner.agent))
            flights[cycle + 1] = workers.start(collect(policies, ring, cycle + 1))
            if in_turn:
                flights[cycle + 1].exception()  # waits
        state, metrics = learner.agent, {}
        if cycle >= warm:
            state, metrics = learn_jit(state, ring, learner.key, first)
        collected = {k: jnp.asarray(v) for k, v in summary(lists).items()}
        return (
            learner._replace(agent=state, ring=ring),
            episodes,
            {k: v[None] for k, v in {**collected, **metrics}.items()},
        )

    def summary(lists: list[list[Played]]) -> dict[str, np.ndarray]:
        """Per seed, means over its episodes: their scores, and the share that moved anything."""

        def mean(of: Callable[[Played], Any]) -> np.ndarray:
            return np.array([np.mean([of(p) for p in played]) for played in lists], np.float32)

        def score(name: str, played: Played) -> Any:
            return scores(task, played)[name]

        names = scores(task, lists[0][0])
        told = {f"collect/{name}": mean(partial(score, name)) for name in names}
        if task.goal_dim:
            told["collect/moved"] = mean(partial(moved, task))
        return told

    def replay(learner: Learner, episodes: Episode) -> Learner:
        return learner._replace(ring=write(learner.ring, episodes))

    def evaluate(state: State, purpose: int, episodes: int) -> Metrics:
        policies = packed(greedy(result_jit(state)))
        seeds = len(policies.packed)
        jobs = [Job(who, 0, purpose, i) for who in range(seeds) for i in range(episodes)]
        said = [scores(task, played) for played in workers.play(jobs, policies)]

        def mean(name: str) -> jax.Array:
            each = np.array([s[name] for s in said], np.float32)
            return jnp.asarray(each.reshape(seeds, episodes).mean(1))

        return {f"eval/{name}": mean(name) for name in said[0]}

    def close() -> None:
        flights.clear()
        workers.close()

    return Program(
        make_init(agent, task, spec, td3.capacity), train, replay, evaluate, close, traces
    )
