"""The program of a Gymnasium environment: worker processes play while the device learns.

The episodes of cycle c + 1 are played while cycle c is learned from, by the policy as it was before
that: as learned through cycle c - 1. The policy that plays next is part of the learner's state, so
a resumed run plays what the killed one was playing. The numbers of steps and episodes so far are
read off the replay buffer. Nothing depends on how fast each process was: the result is the same for
any number of workers, and where playing and learning share a few cores and so take turns.

Every cycle brings each seed to its quota of steps in whole episodes. Steps beyond the quota count
for the next cycle, so updates and steps keep their ratio exactly. Where the quota is
less than an episode, a cycle may play nothing and only learn.
"""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future

import jax
import jax.numpy as jnp
import numpy as np

from uvd.agents.agent import Agent, Metrics
from uvd.collect.exploration import RANDOM_ACTIONS, CollectConfig, Exploration
from uvd.collect.worker import PROBE, TRAIN, Job
from uvd.collect.workers import Policies, Workers, cores
from uvd.core.episode import Episode, stack
from uvd.core.policy import Policy, greedy
from uvd.core.replay import Ring, insert_all
from uvd.settings import RunSettings
from uvd.tasks.env import EnvTask
from uvd.training.evaluate import collected, scores, seed_means
from uvd.training.learner import (
    Learner,
    LearnerState,
    Program,
    Schedule,
    behaviour_policy,
    best_policy,
    exploration_at,
    learn_cycle,
    make_init,
)

PROBE_STEPS = 5000  # random steps from which feature ranges are measured
FEW_CORES = 4  # on so many or fewer, playing beside the learner would hold it up: 5 % on two

_PROBED: dict[tuple[EnvTask, Exploration], Episode] = {}


def probe_env(task: EnvTask, workers: Workers, how: Exploration) -> Episode:
    """Stacked roll-outs without a policy, on which feature ranges are measured."""
    if (task, how) not in _PROBED:  # a process often trains and then loads
        number = min(max(PROBE_STEPS // task.horizon, 10), 100)
        episodes = workers.play([Job(0, 0, PROBE, i, how) for i in range(number)], Policies())
        _PROBED[task, how] = Episode(*(x[0] for x in stack([episodes], task.horizon)))
    return _PROBED[task, how]


def packed(policy: Policy) -> Policies:
    """Policies of all seeds, stacked, ready for the workers."""
    host = jax.tree.map(np.asarray, policy)
    seeds = len(host.net.biases[0])
    return Policies([jax.tree.map(lambda x, i=i: x[i], host) for i in range(seeds)])


def make_env_program(
    agent: Agent,
    task: EnvTask,
    collect: CollectConfig,
    run: RunSettings,
    schedule: Schedule,
    workers: Workers,
    on_policy: bool = False,
) -> Program:
    """Binds an agent to an environment: one cycle a call.

    `on_policy`: nothing plays while the device learns, and the newest policy plays.
    """
    quota = schedule.steps
    in_flight: dict[int, Future] = {}  # the episodes of a cycle that workers are playing
    take_turns = jax.default_backend() == "cpu" and cores() <= FEW_CORES
    traces: Counter[str] = Counter()

    def learn(
        learner: Learner, cycle: jax.Array, has_played: jax.Array
    ) -> tuple[LearnerState, Metrics]:
        traces["train"] += 1
        # Scores of episodes that are still cut short are no measure for those of full length.
        counts = has_played & (quota * cycle >= run.late_steps)

        def one(learner: Learner, counts: jax.Array) -> tuple[LearnerState, Metrics]:
            # The policy that plays from here on is the one before all that follows.
            newest = behaviour_policy(agent, learner.state)
            played = newest if on_policy else learner.state.acting
            assert isinstance(played, Policy)
            confirm = run.confirm_cycles
            state, metrics = learn_cycle(agent, schedule, learner, cycle, played, counts, confirm)
            return state if on_policy else state._replace(acting=newest), metrics

        return jax.vmap(one)(learner, counts)

    def insert(ring: Ring, episodes: Episode) -> Ring:
        traces["insert"] += 1
        return jax.vmap(insert_all)(ring, episodes)

    learn_jit = jax.jit(learn)
    insert_jit = jax.jit(insert, donate_argnums=0)
    behaviour_jit = jax.jit(jax.vmap(lambda state: behaviour_policy(agent, state)))
    best_jit = jax.jit(jax.vmap(lambda state: best_policy(agent, state)))

    def write(ring: Ring, episodes: Episode) -> Ring:
        """In pieces of one size, the last one padded, so that one trace serves any number."""
        for i in range(0, episodes.length.shape[1], run.envs):
            piece = Episode(*(x[:, i : i + run.envs] for x in episodes))
            missing = (0, run.envs - piece.length.shape[1])
            padded = (np.pad(x, [(0, 0), missing, *[(0, 0)] * (x.ndim - 2)]) for x in piece)
            ring = insert_jit(ring, Episode(*padded))
        return ring

    def plan_cycle(
        policy: Policy, ring: Ring, cycle: int, updates: int
    ) -> Callable[[], list[list[Episode]]]:
        """How to play a cycle's episodes; the buffer holds all that were played before."""
        policies = packed(policy)
        done = np.asarray(ring.last)
        # An episode has a row more than it has steps.
        first = (np.asarray(ring.rows_written) - done).tolist()
        owed = (quota * (cycle + 1) - done).tolist()
        warm = collect.warmup_random and cycle < schedule.warm
        how = RANDOM_ACTIONS if warm else exploration_at(collect, updates)
        late = 0 < run.late_steps <= quota * cycle
        cut = run.late_episode_steps if late else run.episode_steps

        def play() -> list[list[Episode]]:
            played: list[list[Episode]] = [[] for _ in owed]
            left = list(owed)
            while max(left) > 0:
                numbers = [n + len(episodes) for n, episodes in zip(first, played)]
                jobs = [
                    Job(seed, run.first_seed + seed, TRAIN, numbers[seed] + i, how, cut)
                    for seed in range(len(played))
                    for i in range(-(-left[seed] // (cut or task.horizon)))
                ]
                for job, episode in zip(jobs, workers.play(jobs, policies), strict=True):
                    played[job.policy].append(episode)
                    left[job.policy] -= len(episode.action)
            return played

        return play

    def train(learner: Learner, first: jax.Array) -> tuple[Learner, Episode | None, Metrics]:
        cycle = int(first)
        updates = schedule.updates_before(cycle)
        flight = in_flight.pop(cycle, None)
        # Nothing of the learner was touched where this raises: it can be saved as it is.
        if flight is not None:
            played = flight.result()
        elif on_policy:
            played = plan_cycle(behaviour_jit(learner.state), learner.ring, cycle, updates)()
        else:
            assert isinstance(learner.state.acting, Policy)
            before = updates - schedule.updates
            played = plan_cycle(learner.state.acting, learner.ring, cycle, before)()
        episodes = stack(played, task.horizon) if any(played) else None
        if episodes is not None:
            learner = learner._replace(ring=write(learner.ring, episodes))
        if cycle + 1 < schedule.total and not on_policy:
            policy = behaviour_jit(learner.state)
            in_flight[cycle + 1] = workers.start(
                plan_cycle(policy, learner.ring, cycle + 1, updates)
            )
            if take_turns:
                in_flight[cycle + 1].exception()  # waits
        metrics: Metrics = {}
        if cycle >= schedule.warm:
            state, metrics = learn_jit(learner, first, np.array([len(seed) > 0 for seed in played]))
            learner = learner._replace(state=state)
        rows = [[collected(task, episode) for episode in seed] for seed in played]
        summary = {**seed_means(rows), **metrics}
        return learner, episodes, {name: jnp.asarray(x)[None] for name, x in summary.items()}

    def evaluate(state: LearnerState, purpose: int, episodes: int) -> Metrics:
        policies = packed(greedy(best_jit(state)))
        seeds = len(policies.packed)
        jobs = [Job(seed, 0, purpose, i) for seed in range(seeds) for i in range(episodes)]
        each = [scores(task, episode) for episode in workers.play(jobs, policies)]
        rows = [each[i : i + episodes] for i in range(0, len(each), episodes)]
        return {f"eval/{name}": jnp.asarray(x) for name, x in seed_means(rows).items()}

    def close() -> None:
        in_flight.clear()
        workers.close()

    return Program(
        init=make_init(agent, task, collect, run, plays_ahead=not on_policy),
        train=train,
        replay=lambda learner, episodes: learner._replace(ring=write(learner.ring, episodes)),
        evaluate=evaluate,
        close=close,
        traces=traces,
    )
