"""Goal-conditioned TD3: the paper's UVFA baseline (Eq. 2) and the frame of the other algorithms.

The critic step takes its target as a function, the actor step its goals; HER changes how a batch is
drawn and UVD passes a target of its own. Rewards are -1 until the goal is reached and 0 there, as
in Fetch, so a value lies in [-1/(1 - gamma), 0] and targets are clipped to that; an environment
with rewards of its own brings their range. Without goals this is TD3 itself, on the rewards that
the task gave: their range is unknown, so the critic is linear and nothing is clipped.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from uvd.agents.agent import ALGORITHMS, Agent, Algorithm, Metrics, Spec
from uvd.core.nets import init_mlp, init_twin, polyak, twin
from uvd.core.policy import MLP, Norm, Policy, act, features, leaning
from uvd.core.replay import Batch, Ring, fetch, sample


@dataclass(frozen=True)
class TD3Config:
    """Settings that every off-policy algorithm shares.

    The defaults suit tasks of the built-in size; the preset `paper` carries the paper's Table 1.
    """

    gamma: float = 0.98
    """Discount."""
    batch: int = 256
    """Transitions in an update."""
    hidden: tuple[int, ...] = (128, 128)
    """Hidden layers of actor and critics."""
    actor_hidden: tuple[int, ...] = ()
    """Hidden layers of the actor where they are others (none: as `hidden`)."""
    actor_lr: float = 1e-3
    """Learning rate of the actor."""
    critic_lr: float = 2e-3
    """Learning rate of the critics."""
    optimiser: str = "adam"
    """Of actor, critics and VDI's densities: adam, or rmsprop (no momentum)."""
    lr_half: int = 0
    """Updates after which those learning rates have halved: they fall as 1 / (1 + n / lr_half)
    (0: they stay)."""
    tau: float = 0.02
    """Share by which the target networks follow at each actor update."""
    critic_tau: float = 0.0
    """The critics' share where it is another (0: as `tau`)."""
    policy_delay: int = 2
    """Critic updates per actor update."""
    target_noise: float = 0.0
    """Standard deviation of the noise on the target action."""
    action_penalty: float = 0.3
    """Weight of mean a² in the actor's loss, against saturation."""
    leaning_penalty: float = 0.0
    """Weight of mean max(|u| - 2, 0)², where tanh u is the action: the same for |a| > 0.96 only."""
    critic_head: str = "tanh"
    """Output of the critic: linear, huber (a tenth of it, Huber's loss), tanh (bounded, squared
    loss) or sigmoid (bounded, log loss)."""
    critic_norm: bool = False
    """Layer normalisation in the critics: their values cannot run away with their features."""
    critic_start: float = 0.0
    """Value at which the critics start, as a share of their bound (sigmoid: in (0, 1))."""
    goal_input: str = "relative"
    """The goal as the nets see it: relative to the achieved one (where observed), or absolute."""
    warmup: int = 1000
    """Transitions collected without learning, rounded up to whole cycles."""
    warmup_random: bool = False
    """Random actions during the warm-up instead of the exploring policy."""
    actor_start: int = 0
    """Updates for which the actor stays frozen."""
    actor_scale: float = 0.1
    """Size of the actor's last layer at the start, as a share of the usual."""
    noise: float = 0.2
    """Standard deviation of the exploration noise."""
    random: float = 0.3
    """Share of random actions while exploring."""
    hold: int = 3
    """Mean number of steps a random action is held."""
    beyond: bool = False
    """Remember noisy actions as they were drawn, beyond ±1 too, where the task cuts them: critics
    then see that nothing is gained there."""
    range_noise: float = 0.0
    """Feature ranges are those of roll-outs with Gaussian actions of this standard deviation
    (0: with uniformly random ones)."""
    capacity: int = 500_000
    """Transitions in the long replay memory."""
    updates_per_step: float = 0.5
    """Updates for each environment step."""


class Head(NamedTuple):
    """How a critic's output becomes a value, and how it is fitted to a target."""

    value: Callable[[jax.Array], jax.Array]
    loss: Callable[[jax.Array, jax.Array], jax.Array]
    utility: Callable[[jax.Array], jax.Array]  # what the actor ascends: increasing in the value
    start: jax.Array | float  # initial output


def _squared(value: Callable[[jax.Array], jax.Array], start: jax.Array | float) -> Head:
    return Head(value, lambda x, y: (value(x) - y) ** 2, value, start)


def _linear(bound: jax.Array | float, start: float) -> Head:
    return _squared(lambda x: x, start * bound)


def _huber(bound: jax.Array | float, start: float) -> Head:
    """A tenth of the output, fitted by Huber's loss: VDI's critic in its authors' code."""
    return Head(
        lambda x: x / 10, lambda x, y: optax.huber_loss(x / 10, y), lambda x: x / 10,
        10 * start * bound,
    )  # fmt: skip


def _tanh(bound: jax.Array | float, start: float) -> Head:
    return _squared(lambda x: bound * jnp.tanh(x), jnp.arctanh(start))


def _sigmoid(bound: jax.Array | float, start: float) -> Head:
    """Spans (0, bound) and fits by log loss.

    Log loss, like squared loss, is least at the mean of the targets: unbiased under noise. It keeps
    its precision where values are small, and the actor ascends the logarithm of the value, so
    states far from their goal count as much as near ones.
    """
    return Head(
        lambda x: bound * jax.nn.sigmoid(x),
        lambda x, y: optax.sigmoid_binary_cross_entropy(x, y / bound),
        jax.nn.log_sigmoid,
        jnp.log(start) - jnp.log1p(-start),
    )


HEADS: dict[str, Callable[[jax.Array | float, float], Head]] = {
    "linear": _linear,
    "huber": _huber,
    "tanh": _tanh,
    "sigmoid": _sigmoid,
}


class TD3State(NamedTuple):
    """Networks, their slow copies and optimisers, and the feature ranges they read through."""

    actor: MLP
    actor_target: MLP
    critic: MLP
    critic_target: MLP
    actor_opt: optax.OptState
    critic_opt: optax.OptState
    norm: Norm


# (state, batch, goals, key) -> (target, metrics)
TargetFn = Callable[[TD3State, Batch, jax.Array, jax.Array], tuple[jax.Array, Metrics]]
PolicyFn = Callable[[MLP, Norm], Policy]
FREE = 2.0  # how far the actor may lean for nothing: tanh has a slope of 0.07 there

OPTIMISERS: dict[str, Callable[[optax.ScalarOrSchedule], optax.GradientTransformation]] = {
    "adam": optax.adam,
    # As PyTorch has it, which the paper's code ran on.
    "rmsprop": lambda rate: optax.rmsprop(rate, decay=0.99, eps=1e-8, eps_in_sqrt=False),
}


def optimiser(config: TD3Config, rate: float) -> optax.GradientTransformation:
    """The one that is set, with this learning rate at first."""
    if not config.lr_half:
        return OPTIMISERS[config.optimiser](rate)
    return OPTIMISERS[config.optimiser](lambda n: rate / (1 + n / config.lr_half))


def policy_of(actor: MLP, norm: Norm) -> Policy:
    """The policy of an actor, which reads what its net has inputs for: not what critics are told.

    The expert of a task that hides something is trained so (asymmetric actor and critic).
    """
    shown = actor.weights[0].shape[-2] - norm.goal_shift.shape[-1]
    shift, scale = norm.obs_shift[..., :shown], norm.obs_scale[..., :shown]
    return Policy(actor, norm._replace(obs_shift=shift, obs_scale=scale))


def init_td3(
    config: TD3Config, head: Head, spec: Spec, key: jax.Array, actor_goal_dim: int | None = None
) -> TD3State:
    """Fresh networks, the slow copies equal to them, the critics near their starting value.

    The actor reads as much of a goal as the critic, or `actor_goal_dim` numbers.
    """
    key_actor, key_critic = jax.random.split(key)
    norm = spec.norm if config.goal_input == "relative" else spec.norm._replace(seen=None)
    inputs = spec.obs_dim + spec.goal_dim
    shown = spec.obs_dim - spec.told
    actor_inputs = shown + (spec.goal_dim if actor_goal_dim is None else actor_goal_dim)
    actor_hidden = config.actor_hidden or config.hidden
    sizes = (actor_inputs, *actor_hidden, spec.action_dim)
    actor = init_mlp(key_actor, sizes, config.actor_scale)
    critic = init_twin(key_critic, (inputs + spec.action_dim, *config.hidden, 1), 0.1, head.start)
    return TD3State(
        actor,
        actor,
        critic,
        critic,
        optimiser(config, config.actor_lr).init(actor),
        optimiser(config, config.critic_lr).init(critic),
        jax.tree.map(jnp.asarray, norm),
    )


def critic_outputs(
    critic: MLP,
    norm: Norm,
    obs: jax.Array,
    goal: jax.Array,
    action: jax.Array,
    normed: bool = False,
) -> jax.Array:
    """Raw outputs of both critics, `[2, batch]`."""
    return twin(critic, jnp.concatenate([features(norm, obs, goal), action], -1), normed)


def next_value(
    config: TD3Config,
    head: Head,
    state: TD3State,
    batch: Batch,
    goal: jax.Array,
    key: jax.Array,
    mu: PolicyFn = policy_of,
) -> tuple[jax.Array, jax.Array]:
    """min over the twins of Q'(s', mu'(s'; g); g), zero after a terminal step; and that action."""
    action = act(mu(state.actor_target, state.norm), batch.next_obs, goal)
    if config.target_noise:
        noise = config.target_noise * jax.random.normal(key, action.shape)
        action = jnp.clip(action + jnp.clip(noise, -0.5, 0.5), -1, 1)
    q = critic_outputs(
        state.critic_target, state.norm, batch.next_obs, goal, action, config.critic_norm
    )
    return head.value(q).min(0) * ~batch.terminated, action


def critic_step(
    config: TD3Config,
    head: Head,
    state: TD3State,
    batch: Batch,
    goal: jax.Array,
    weight: jax.Array | float,
    target_fn: TargetFn,
    key: jax.Array,
) -> tuple[TD3State, Metrics]:
    """One regression step of both critics towards `target_fn`, each transition with its weight."""
    target, metrics = target_fn(state, batch, goal, key)
    target = jax.lax.stop_gradient(target)

    def critic_loss(critic: MLP) -> tuple[jax.Array, jax.Array]:
        out = critic_outputs(critic, state.norm, batch.obs, goal, batch.action, config.critic_norm)
        return (weight * head.loss(out, target)).mean(1).sum(), head.value(out).mean()

    (loss, q), grads = jax.value_and_grad(critic_loss, has_aux=True)(state.critic)
    updates, opt = optimiser(config, config.critic_lr).update(grads, state.critic_opt)
    state = state._replace(critic=optax.apply_updates(state.critic, updates), critic_opt=opt)
    return state, {"critic/loss": loss, "critic/q": q, "critic/target": target.mean(), **metrics}


def actor_step(
    config: TD3Config,
    head: Head,
    state: TD3State,
    obs: jax.Array,
    goal: jax.Array,
    mu: PolicyFn = policy_of,
) -> TD3State:
    """One step up the deterministic policy gradient, then the slow copies follow.

    No s' enters here: any goal, even one seen in hindsight, leaves the actor's optimum unmoved.
    """
    first = jax.tree.map(lambda x: x[:1], state.critic)

    def actor_loss(actor: MLP) -> jax.Array:
        lean = leaning(mu(actor, state.norm), obs, goal)
        action = jnp.tanh(lean)
        out = critic_outputs(first, state.norm, obs, goal, action, config.critic_norm)
        value = head.utility(out[0])
        excess = jnp.maximum(abs(lean) - FREE, 0)
        penalty = config.action_penalty * (action**2).mean()
        penalty += config.leaning_penalty * (excess**2).mean()
        return -value.mean() + penalty

    grads = jax.grad(actor_loss)(state.actor)
    updates, opt = optimiser(config, config.actor_lr).update(grads, state.actor_opt)
    actor = optax.apply_updates(state.actor, updates)
    return state._replace(
        actor=actor,
        actor_opt=opt,
        actor_target=polyak(state.actor_target, actor, config.tau),
        critic_target=follow(config, state),
    )


def follow(config: TD3Config, state: TD3State) -> MLP:
    """The slow critics, a step nearer to the others."""
    return polyak(state.critic_target, state.critic, config.critic_tau or config.tau)


def learn(
    config: TD3Config,
    head: Head,
    state: TD3State,
    batch: Batch,
    goal: jax.Array,
    weight: jax.Array | float,
    target_fn: TargetFn,
    actor_goal: Callable[[], jax.Array],
    key: jax.Array,
    step: jax.Array,
    mu: PolicyFn = policy_of,
) -> tuple[TD3State, Metrics]:
    """A critic step and, every `policy_delay`-th time, an actor step on the same observations."""
    state, metrics = critic_step(config, head, state, batch, goal, weight, target_fn, key)

    def wait(s: TD3State) -> TD3State:
        return s._replace(critic_target=follow(config, s))

    def improve(s: TD3State) -> TD3State:
        return actor_step(config, head, s, batch.obs, actor_goal(), mu)

    # A graphics card waits for the host at every condition: there is none without need.
    def started(s: TD3State) -> TD3State:
        if not config.actor_start:
            return improve(s)
        return jax.lax.cond(step >= config.actor_start, improve, wait, s)

    if config.policy_delay == 1:
        return started(state), metrics
    due = step % config.policy_delay == 0
    return jax.lax.cond(due, started, lambda s: s, state), metrics


def sparse_target(config: TD3Config, head: Head, spec: Spec) -> TargetFn:
    """r + gamma Q'(s', mu'(s')), with the reward of *this* transition for the goal at hand."""
    low, high = spec.value_range(config.gamma)
    reward_fn = spec.reward or (lambda achieved, goal: spec.success(achieved, goal) - 1.0)

    def target_fn(state: TD3State, batch: Batch, goal: jax.Array, key: jax.Array):
        reward = batch.reward if spec.rewards else reward_fn(batch.next_achieved, goal)
        q, action = next_value(config, head, state, batch, goal, key)
        target = jnp.clip(reward + config.gamma * q, low, high)
        return target, {"critic/reward": reward.mean(), "actor/abs_action": abs(action).mean()}

    return target_fn


def make_sparse(
    config: TD3Config, spec: Spec, draw: Callable[[Ring, jax.Array], tuple[Batch, jax.Array]]
) -> Agent:
    """TD3 on the task's rewards over batches and goals that `draw` provides (TD3 and HER)."""
    bound = max(abs(value) for value in spec.value_range(config.gamma))
    head = HEADS[config.critic_head](1.0 if spec.rewards else bound, config.critic_start)
    target_fn = sparse_target(config, head, spec)

    def update(state: TD3State, ring: Ring, key: jax.Array, step: jax.Array):
        key_draw, key_target = jax.random.split(key)
        batch, goal = draw(ring, key_draw)
        return learn(
            config, head, state, batch, goal, 1.0, target_fn, lambda: goal, key_target, step
        )

    return Agent(
        lambda key, spec: init_td3(config, head, spec, key),
        update,
        lambda state: policy_of(state.actor_target, state.norm),
    )


def make_td3(config: TD3Config, spec: Spec) -> Agent:
    """TD3 with the goals that were intended."""

    def draw(ring: Ring, key: jax.Array) -> tuple[Batch, jax.Array]:
        batch = fetch(ring, sample(ring, key, config.batch))
        return batch, batch.goal

    return make_sparse(config, spec, draw)


ALGORITHMS["td3"] = Algorithm(
    "TD3 with intended goals (the UVFA baseline), or on rewards where there are no goals",
    TD3Config, make_td3, takes_rewards=True,
)  # fmt: skip
