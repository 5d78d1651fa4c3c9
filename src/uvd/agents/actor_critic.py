"""Twin critics and a deterministic actor: the steps of TD3 that all off-policy algorithms share.

The critic step takes its target as a function and the actor step its goals, so TD3, HER, UVD, VDI,
KDI and DAC are different targets, batches and goals over the same steps. The critic may read a goal
that the actor does not (VDI), and numbers at the end of an observation that no policy reads.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from uvd.agents.agent import Metrics, Spec
from uvd.agents.heads import Head, HeadName
from uvd.core.config import (
    Count,
    Discount,
    Layers,
    NotNegative,
    Positive,
    Share,
    Size,
    require,
    validate,
)
from uvd.core.nets import (
    OptimiserName,
    gradient_step,
    init_mlp,
    init_twin,
    make_optimiser,
    polyak,
    twin,
)
from uvd.core.policy import MLP, Norm, Policy, act, features
from uvd.core.replay import Batch


@dataclass(frozen=True)
class TD3Config:
    """Actor and critics, as all off-policy algorithms share them."""

    gamma: Discount = 0.98
    """Discount."""
    batch: Count = 256
    """Transitions in an update."""
    hidden: Layers = (128, 128)
    """Hidden layers of actor and critics."""
    actor_hidden: Layers = ()
    """Hidden layers of the actor where they are others (none: as `hidden`)."""
    actor_lr: Positive = 1e-3
    """Learning rate of the actor."""
    critic_lr: Positive = 2e-3
    """Learning rate of the critics."""
    optimiser: OptimiserName = "adam"
    """Of actor, critics and learned densities; rmsprop has no momentum."""
    lr_half: Size = 0
    """Updates after which those learning rates have halved: they fall as 1 / (1 + n / lr_half)
    (0: they are constant)."""
    tau: Share = 0.02
    """Share by which the target networks follow at each actor update."""
    critic_tau: Share = 0.0
    """The critics' share where it is another (0: as `tau`)."""
    policy_delay: Count = 2
    """Critic updates per actor update."""
    target_noise: NotNegative = 0.0
    """Standard deviation of the noise on the target action."""
    action_penalty: NotNegative = 0.3
    """Weight of mean a² in the actor's loss, against saturation."""
    critic_head: HeadName = "tanh"
    """Output of the critic: linear, huber (value = output / 10, Huber loss), tanh (bounded, squared
    loss) or sigmoid (bounded, log loss)."""
    critic_norm: bool = False
    """Layer normalisation in the critics: their values cannot run away with their features."""
    critic_start: float = 0.0
    """Value at which the critics start, as a share of their bound (sigmoid: in (0, 1))."""
    goal_input: Literal["relative", "absolute"] = "relative"
    """The goal as the nets see it: relative to the achieved one (where observed), or absolute."""
    actor_start: Size = 0
    """Updates for which the actor stays frozen."""
    actor_scale: NotNegative = 0.1
    """Size of the actor's last layer at the start, as a share of the usual."""

    def __post_init__(self) -> None:
        validate(self)
        low = {"sigmoid": 0, "tanh": -1}.get(self.critic_head, -math.inf)
        require(
            low < self.critic_start < 1 or low == -math.inf,
            f"critic_start = {self.critic_start} must lie inside the range of a {self.critic_head}",
        )


class TD3State(NamedTuple):
    """Networks, their slow copies and optimisers, and the feature ranges they read through."""

    actor: MLP
    actor_target: MLP
    critic: MLP
    critic_target: MLP
    actor_opt: optax.OptState
    critic_opt: optax.OptState
    norm: Norm


class Goals(NamedTuple):
    """Goals for a batch, and the weight that each transition has with its goal."""

    goal: jax.Array  # [batch, goal]
    weight: jax.Array | float = 1.0


# (state, batch, goals g, Q'(s', a'; g), the slow actor's a') -> (target, metrics)
TargetFn = Callable[[TD3State, Batch, jax.Array, jax.Array, jax.Array], tuple[jax.Array, Metrics]]


def clipped(free: jax.Array, bound: jax.Array | float) -> tuple[jax.Array, Metrics]:
    """A target within [0, bound], and how far the largest one was over it."""
    return jnp.clip(free, 0.0, bound), {"critic/target_over_bound_max": free.max() / bound}


@dataclass(frozen=True)
class ActorCritic:
    """The steps of TD3, with settings, head and sizes bound."""

    config: TD3Config
    head: Head
    spec: Spec  # its goals are those that the critic reads
    actor_reads_goal: bool = True

    def init(self, key: jax.Array) -> TD3State:
        """Fresh networks, slow copies equal to them, critics near their starting value."""
        config, spec = self.config, self.spec
        key_actor, key_critic = jax.random.split(key)
        norm = spec.norm
        if config.goal_input == "absolute":
            norm = norm._replace(achieved_columns=None)
        inputs = spec.policy_obs_dim + (spec.goal_dim if self.actor_reads_goal else 0)
        sizes = (inputs, *(config.actor_hidden or config.hidden), spec.action_dim)
        actor = init_mlp(key_actor, sizes, config.actor_scale)
        sizes = (spec.obs_dim + spec.goal_dim + spec.action_dim, *config.hidden, 1)
        critic = init_twin(key_critic, sizes, 0.1, self.head.start)
        return TD3State(
            actor=actor,
            actor_target=actor,
            critic=critic,
            critic_target=critic,
            actor_opt=self._optimiser(config.actor_lr).init(actor),
            critic_opt=self._optimiser(config.critic_lr).init(critic),
            norm=jax.tree.map(jnp.asarray, norm),
        )

    def _optimiser(self, rate: float) -> optax.GradientTransformation:
        return make_optimiser(self.config.optimiser, rate, self.config.lr_half)

    def policy(self, state: TD3State) -> Policy:
        """The slow actor with the ranges of what it reads."""
        return self._policy(state.actor_target, state.norm)

    def _policy(self, actor: MLP, norm: Norm) -> Policy:
        n = self.spec.policy_obs_dim
        norm = norm._replace(obs_shift=norm.obs_shift[..., :n], obs_scale=norm.obs_scale[..., :n])
        if not self.actor_reads_goal:
            none = norm.goal_shift[..., :0]
            norm = norm._replace(goal_shift=none, goal_scale=none, achieved_columns=None)
        return Policy(actor, norm)

    def action(self, actor: MLP, norm: Norm, obs: jax.Array, goal: jax.Array) -> jax.Array:
        """mu(s; g), of the part of s and g that the actor reads."""
        goal = goal if self.actor_reads_goal else goal[..., :0]
        return act(self._policy(actor, norm), obs[..., : self.spec.policy_obs_dim], goal)

    def critic_outputs(
        self, critic: MLP, norm: Norm, obs: jax.Array, goal: jax.Array, action: jax.Array
    ) -> jax.Array:
        """Raw outputs of both critics, `[2, batch]`."""
        inputs = jnp.concatenate([features(norm, obs, goal), action], -1)
        return twin(critic, inputs, self.config.critic_norm)

    def next_value(
        self, state: TD3State, batch: Batch, goal: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """min over the twins of Q'(s', mu'(s'; g); g), zero after a terminal step; that action."""
        action = self.action(state.actor_target, state.norm, batch.next_obs, goal)
        if self.config.target_noise:
            noise = self.config.target_noise * jax.random.normal(key, action.shape)
            action = jnp.clip(action + jnp.clip(noise, -0.5, 0.5), -1, 1)
        q = self.critic_outputs(state.critic_target, state.norm, batch.next_obs, goal, action)
        return self.head.value(q).min(0) * ~batch.terminated, action

    def critic_step(
        self, state: TD3State, batch: Batch, goals: Goals, target_fn: TargetFn, key: jax.Array
    ) -> tuple[TD3State, Metrics]:
        """One regression step of both critics towards `target_fn`."""
        next_q, next_action = self.next_value(state, batch, goals.goal, key)
        target, metrics = target_fn(state, batch, goals.goal, next_q, next_action)
        target = jax.lax.stop_gradient(target)

        def critic_loss(critic: MLP) -> tuple[jax.Array, Metrics]:
            out = self.critic_outputs(critic, state.norm, batch.obs, goals.goal, batch.action)
            loss = (goals.weight * self.head.loss(out, target)).mean(1).sum()
            return loss, {"critic/loss": loss, "critic/q": self.head.value(out).mean()}

        critic, opt, own = gradient_step(
            critic_loss, self._optimiser(self.config.critic_lr), state.critic, state.critic_opt
        )
        metrics |= {"critic/target": target.mean(), "actor/abs_action": abs(next_action).mean()}
        return state._replace(critic=critic, critic_opt=opt), {**metrics, **own}

    def actor_step(self, state: TD3State, obs: jax.Array, goal: jax.Array) -> TD3State:
        """One step up the deterministic policy gradient, then the slow copies follow.

        No s' enters here: any goal, even one seen in hindsight, leaves the optimum unmoved.
        """
        first = jax.tree.map(lambda x: x[:1], state.critic)

        def actor_loss(actor: MLP) -> tuple[jax.Array, None]:
            action = self.action(actor, state.norm, obs, goal)
            out = self.critic_outputs(first, state.norm, obs, goal, action)
            penalty = self.config.action_penalty * (action**2).mean()
            return -self.head.utility(out[0]).mean() + penalty, None

        actor, opt, _ = gradient_step(
            actor_loss, self._optimiser(self.config.actor_lr), state.actor, state.actor_opt
        )
        slow_actor = polyak(state.actor_target, actor, self.config.tau)
        state = state._replace(actor=actor, actor_opt=opt, actor_target=slow_actor)
        return self._critics_follow(state)

    def _critics_follow(self, state: TD3State) -> TD3State:
        """The slow critics, a step nearer to the others."""
        tau = self.config.critic_tau or self.config.tau
        return state._replace(critic_target=polyak(state.critic_target, state.critic, tau))

    def learn(
        self,
        state: TD3State,
        batch: Batch,
        goals: Goals,
        target_fn: TargetFn,
        actor_goal: Callable[[], jax.Array],
        key: jax.Array,
        step: jax.Array,
    ) -> tuple[TD3State, Metrics]:
        """A critic step and, every `policy_delay`-th time, an actor step on the observations."""
        config = self.config
        state, metrics = self.critic_step(state, batch, goals, target_fn, key)

        def improve(s: TD3State) -> TD3State:
            return self.actor_step(s, batch.obs, actor_goal())

        def improve_if_started(s: TD3State) -> TD3State:
            # A graphics card waits for the host at every condition: there is none without need.
            if not config.actor_start:
                return improve(s)
            return jax.lax.cond(step >= config.actor_start, improve, self._critics_follow, s)

        if config.policy_delay == 1:
            return improve_if_started(state), metrics
        due = step % config.policy_delay == 0
        return jax.lax.cond(due, improve_if_started, lambda s: s, state), metrics
