"""How wrong the critic of a run is: what it believes of a state, and what playing on shows.

    python bench/critic_bias.py RUN ... [--states 512] [--plays 64] [--out bias.jsonl]

For runs of her, usher, td3 and uvd on the built-in tasks. From states that the policy visits, with
the action that it takes there, it plays on without exploration, many times. Both numbers are
discounted shares of the time in which the goal is achieved: for uvd softly, by the kernel of its
target; for the others within the task's radius. A row a seed: the means over states of what is
believed, of what is true, and of their difference, in points, with its standard error.
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import uvd
from rows import report
from uvd.agents.actor_critic import ActorCritic
from uvd.agents.goal_density import GoalDensity
from uvd.agents.heads import make_head
from uvd.agents.td3 import sparse_actor_critic
from uvd.core.policy import Policy, act

BEYOND = 6  # time constants 1 / (1 - gamma) that are played on: what is cut off is below 0.3 points


def beliefs(trained: uvd.Trained, seed: int):
    """The critic's value as a share of its largest, and the closeness that it counts."""
    plan, config = trained.plan, trained.plan.config.settings
    agent, gamma = trained.seed_state(seed).agent, config.td3.gamma
    if plan.config.algorithm == "uvd":
        density = GoalDensity(config.density, plan.spec, config.td3.optimiser, gamma)
        kernel, td3 = density.kernel, agent.td3
        schedule = plan.schedule
        width = kernel.width(schedule.updates_before(trained.step // schedule.steps))
        ac = ActorCritic(
            config.td3, make_head(config.td3.critic_head, density.bound, 0.5), plan.spec
        )

        def close(achieved: jax.Array, goal: jax.Array) -> jax.Array:
            gap = (goal - achieved)[..., kernel.columns] / (width * kernel.unit)
            return jnp.exp(-(gap**2).sum(-1) / 2)

        def share(q: jax.Array) -> jax.Array:
            return q / density.bound
    else:
        ac, td3 = sparse_actor_critic(config.td3, plan.spec), getattr(agent, "td3", agent)

        def close(achieved: jax.Array, goal: jax.Array) -> jax.Array:
            return plan.task.success(achieved, goal).astype(float)

        def share(q: jax.Array) -> jax.Array:
            return 1 + (1 - gamma) * q

    def believed(obs: jax.Array, goal: jax.Array, action: jax.Array) -> jax.Array:
        outputs = ac.critic_outputs(td3.critic, td3.norm, obs, goal, action)
        return share(ac.head.value(outputs).min(0))

    return believed, close, gamma


def measure(trained: uvd.Trained, seed: int, states: int, plays: int) -> dict[str, float]:
    """The row of one seed."""
    task, policy = trained.plan.task, trained.policy(seed).policy
    believed, close, gamma = beliefs(trained, seed)
    steps = int(BEYOND / (1 - gamma))

    def advance(policy: Policy, state, keys):
        def one(state, key):
            after = task.step(state, act(policy, task.observe(state), task.goal(state)), key)
            return after, close(task.achieved(after), task.goal(state))

        return jax.lax.scan(one, state, keys)

    @jax.jit
    def visit(policy, key):
        """A state of an episode, at a time drawn from its first half."""
        key_reset, key_steps, key_time = jax.random.split(key, 3)
        keys = jax.random.split(key_steps, task.horizon // 2)

        def one(state, key):
            after = task.step(state, act(policy, task.observe(state), task.goal(state)), key)
            return after, state

        _, path = jax.lax.scan(one, task.reset(key_reset), keys)
        time = jax.random.randint(key_time, (), 0, len(keys))
        return jax.tree.map(lambda x: x[time], path)

    @jax.jit
    def play_on(policy, state, key):
        def one(key):
            _, near = advance(policy, state, jax.random.split(key, steps))
            return (1 - gamma) * (gamma ** jnp.arange(steps) * near).sum()

        return jax.vmap(one)(jax.random.split(key, plays)).mean()

    keys = jax.random.split(jax.random.key(17), 2 * states).reshape(2, states)
    here = jax.vmap(visit, (None, 0))(policy, keys[0])
    true = jax.lax.map(lambda x: play_on(policy, *x), (here, keys[1]))
    obs, goal = jax.vmap(task.observe)(here), jax.vmap(task.goal)(here)
    belief = believed(obs, goal, act(policy, obs, goal))
    gap = 100 * np.asarray(belief - true, float)
    means = {"believed": 100 * float(belief.mean()), "true": 100 * float(true.mean())}
    return {**means, "bias": gap.mean(), "error": gap.std() / len(gap) ** 0.5}


def main() -> None:
    """Prints a row a seed and appends it to `--out`."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--states", type=int, default=512)
    parser.add_argument("--plays", type=int, default=64)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    for path in args.runs:
        trained = uvd.load(path)
        for seed in trained.seeds:
            row = {"run": path.name, "seed": seed}
            row |= measure(trained, seed, args.states, args.plays)
            report(row, args.out)


if __name__ == "__main__":
    main()
