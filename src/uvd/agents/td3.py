"""Goal-conditioned TD3: the paper's UVFA baseline (Eq. 2) and the frame of the other algorithms.

    collect a cycle of episodes with mu(s; g) and exploration noise
    for each update:
        draw a batch of transitions (s, a, s') and their goals g
        target  y = r(s', g) + gamma min_i Q_i'(s', mu'(s'; g); g)       clipped to its bounds
        critics Q_1, Q_2: one step on (Q_i(s, a; g) - y)^2
        every `policy_delay`-th update:
            actor mu: one step up Q_1(s, mu(s; g); g); targets Q', mu' follow slowly

The steps themselves are in `actor_critic`. Rewards are -1 until the goal is reached and 0
there, so a value lies in [-1/(1 - gamma), 0]. Without goals this is TD3 itself on the task's own
rewards: their range is unknown, so the critic is linear and no target is clipped.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp

from uvd.agents.actor_critic import ActorCritic, Goals, TargetFn, TD3Config, TD3State
from uvd.agents.agent import ALGORITHMS, Agent, Algorithm, Preset, Spec, simulated_goals
from uvd.agents.heads import make_head
from uvd.collect.exploration import CollectConfig
from uvd.core.config import require
from uvd.core.replay import Batch, Ring, fetch, sample


@dataclass(frozen=True)
class TD3Settings:
    """TD3's settings and how experience is collected."""

    td3: TD3Config = field(default_factory=TD3Config)
    collect: CollectConfig = field(default_factory=CollectConfig)

    def __post_init__(self) -> None:
        refuse_sigmoid(self.td3)


def refuse_sigmoid(config: TD3Config) -> None:
    """For algorithms whose values may be negative."""
    require(config.critic_head != "sigmoid", "critic_head = sigmoid is for values above 0: for uvd")


def sparse_target(ac: ActorCritic, spec: Spec) -> TargetFn:
    """r + gamma Q'(s', mu'(s')), with the reward of *this* transition for the goal at hand."""
    gamma = ac.config.gamma
    low, high = spec.value_range(gamma)
    reward_fn = spec.reward or (lambda achieved, goal: spec.success(achieved, goal) - 1.0)

    def target_fn(state: TD3State, batch: Batch, goal: jax.Array, q: jax.Array, action: jax.Array):
        reward = batch.reward if spec.has_rewards else reward_fn(batch.next_achieved, goal)
        return jnp.clip(reward + gamma * q, low, high), {"critic/reward": reward.mean()}

    return target_fn


def sparse_actor_critic(config: TD3Config, spec: Spec) -> ActorCritic:
    """Actor and critics with a head that suits the task's rewards."""
    bound, name = max(abs(value) for value in spec.value_range(config.gamma)), config.critic_head
    if spec.has_rewards:  # no range of values comes with them, which a bounded head would need
        bound, name = 1.0, "linear" if name == "tanh" else name
    return ActorCritic(config, make_head(name, bound, config.critic_start), spec)


def make_sparse(
    config: TD3Config, spec: Spec, draw: Callable[[Ring, jax.Array], tuple[Batch, jax.Array]]
) -> Agent:
    """TD3 on the task's rewards over batches and goals that `draw` provides (TD3 and HER)."""
    ac = sparse_actor_critic(config, spec)
    target_fn = sparse_target(ac, spec)

    def update(state: TD3State, ring: Ring, key: jax.Array, step: jax.Array):
        key_draw, key_target = jax.random.split(key)
        batch, goal = draw(ring, key_draw)
        return ac.learn(state, batch, Goals(goal), target_fn, lambda: goal, key_target, step)

    return Agent(ac.init, update, ac.policy)


def make_td3(config: TD3Settings, spec: Spec) -> Agent:
    """TD3 with the goals that were intended."""

    def draw(ring: Ring, key: jax.Array) -> tuple[Batch, jax.Array]:
        batch = fetch(ring, sample(ring, key, config.td3.batch))
        return batch, batch.goal

    return make_sparse(config.td3, spec, draw)


# Table 1 of the paper. Where it is silent: as the paper's text or its authors' code has it.
PAPER = {
    "batch": 512, "hidden": (400, 400), "actor_lr": 2e-4, "critic_lr": 2e-4, "tau": 0.01,
    "action_penalty": 0.0, "noise": 0.1, "random": 0.0, "hold": 1, "capacity": 1_500_000,
    "updates_per_step": 1.0, "goal_input": "absolute",
}  # fmt: skip
# Chosen on FetchPush.
SIZES = {
    "batch": 1024, "hidden": (256, 256, 256), "critic_lr": 1e-3, "warmup": 2000, "hold": 1,
    "capacity": 1_000_000,
}  # fmt: skip
ENVIRONMENT = Preset(
    "Gymnasium environments with goals: 3 x 256, batch 1024",
    {**SIZES, "tau": 0.01, "critic_head": "linear", "action_penalty": 0.1},
    simulated_goals,
)
# The sizes that are usual for MuJoCo's walkers.
REWARDS = {
    "gamma": 0.99, "hidden": (256, 256), "actor_lr": 3e-4, "critic_lr": 3e-4, "tau": 0.005,
    "target_noise": 0.2, "action_penalty": 0.0, "critic_head": "linear", "critic_norm": True,
    "noise": 0.1, "random": 0.0, "hold": 1, "capacity": 1_000_000, "updates_per_step": 1.0,
    "warmup": 25_000, "warmup_random": True,
}  # fmt: skip

ALGORITHMS["td3"] = Algorithm(
    about="TD3 with intended goals (the UVFA baseline), or on rewards where there are no goals",
    config=TD3Settings,
    make=make_td3,
    presets={
        "environment": ENVIRONMENT,
        "rewards": Preset(
            "Gymnasium environments without goals: 2 x 256, one update a step",
            REWARDS,
            lambda facts: facts.simulated and not facts.has_goals,
        ),
        "paper": Preset("the paper's Table 1 to the letter", PAPER),
    },
    takes_rewards=True,
)
