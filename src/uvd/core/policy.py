"""A policy as plain arrays, applied by one function to NumPy and JAX arrays alike.

This module imports neither JAX nor NumPy's heavier friends, so a process that only steps a
simulator can act without loading a learner.
"""

from typing import Any, NamedTuple

Array = Any  # a NumPy or a JAX array: both answer `__array_namespace__`
FEATURE_CLIP = 5.0  # features are clipped here, in half-ranges, unless their norm says otherwise


class MLP(NamedTuple):
    """Weights and biases, layer by layer. A leading axis on every leaf makes it a stack of nets."""

    weights: tuple[Array, ...]
    biases: tuple[Array, ...]


def leaky_relu(x: Array) -> Array:
    """max(x, 0.01 x), written with operators that both array libraries share."""
    return 0.505 * x + 0.495 * abs(x)


def mlp(net: MLP, x: Array, layer_norm: bool = False) -> Array:
    """Leaky-ReLU layers and a linear last one (the paper's Tables 1 and 2)."""
    for w, b in zip(net.weights[:-1], net.biases[:-1], strict=True):
        x = x @ w + b
        if layer_norm:
            x = (x - x.mean(-1, keepdims=True)) / (x.var(-1, keepdims=True) + 1e-5) ** 0.5
        x = leaky_relu(x)
    return x @ net.weights[-1] + net.biases[-1]


class Norm(NamedTuple):
    """Where features lie and how wide they are: `(x - shift) / scale` is of about unit size."""

    obs_shift: Array  # [obs]
    obs_scale: Array  # [obs]
    goal_shift: Array  # [goal]
    goal_scale: Array  # [goal]
    achieved_columns: Array | None = None  # [goal], the observation's columns of the achieved goal
    obs_clip: Array | None = None  # where observations are clipped (None: at `FEATURE_CLIP`)


def achieved_in(norm: Norm, obs: Array) -> Array:
    """The achieved goal, read off the observation; without one, the middle of the goals' range."""
    return norm.goal_shift if norm.achieved_columns is None else obs[..., norm.achieved_columns]


class Policy(NamedTuple):
    """mu(s; g): what acting needs and nothing else."""

    net: MLP
    norm: Norm
    log_std: Array | None = None  # [action], of a Gaussian policy while it collects experience


def greedy(policy: Policy) -> Policy:
    """The same policy without its noise."""
    return policy._replace(log_std=None)


def normalised(norm: Norm, obs: Array) -> Array:
    """An observation as nets read it, clipped far outside the range that random roll-outs showed
    (an object that falls from the table)."""
    clip = FEATURE_CLIP if norm.obs_clip is None else norm.obs_clip
    return obs.__array_namespace__().clip((obs - norm.obs_shift) / norm.obs_scale, -clip, clip)


def features(norm: Norm, obs: Array, goal: Array) -> Array:
    """The input of actor, critic and density: the observation, and how far away the goal is."""
    xp = obs.__array_namespace__()
    gap = (goal - achieved_in(norm, obs)) / norm.goal_scale
    return xp.concat([normalised(norm, obs), xp.clip(gap, -FEATURE_CLIP, FEATURE_CLIP)], axis=-1)


def pre_tanh(policy: Policy, obs: Array, goal: Array) -> Array:
    """The net's output, whose tanh is the action."""
    return mlp(policy.net, features(policy.norm, obs, goal))


def act(policy: Policy, obs: Array, goal: Array) -> Array:
    """The deterministic action in [-1, 1] for one observation or a batch of them."""
    x = pre_tanh(policy, obs, goal)
    return x.__array_namespace__().tanh(x)
