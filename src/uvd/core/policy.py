"""A policy as plain arrays, applied by one function to NumPy and JAX arrays alike.

This module imports neither JAX nor NumPy's heavier friends, so a process that only steps a
simulator can act without loading a learner.
"""

from typing import Any, NamedTuple

Array = Any  # a NumPy or a JAX array: both answer `__array_namespace__`
FAR = 5.0  # where features are cut, in half-ranges, unless their norm says otherwise


class MLP(NamedTuple):
    """Weights and biases, layer by layer. A leading axis on every leaf makes it a stack of nets."""

    weights: tuple[Array, ...]
    biases: tuple[Array, ...]


def leaky_relu(x: Array) -> Array:
    """max(x, 0.01 x), written with operators that both array libraries share."""
    return 0.505 * x + 0.495 * abs(x)


def mlp(net: MLP, x: Array, normed: bool = False) -> Array:
    """Leaky-ReLU layers and a linear last one (the paper's Tables 1 and 2).

    `normed`: each hidden layer has mean 0 and deviation 1 before it bends (layer normalisation).
    """
    for w, b in zip(net.weights[:-1], net.biases[:-1], strict=True):
        x = x @ w + b
        if normed:
            x = (x - x.mean(-1, keepdims=True)) / (x.var(-1, keepdims=True) + 1e-5) ** 0.5
        x = leaky_relu(x)
    return x @ net.weights[-1] + net.biases[-1]


class Norm(NamedTuple):
    """Where features lie and how wide they are: `(x - shift) / scale` is of about unit size."""

    obs_shift: Array
    obs_scale: Array
    goal_shift: Array
    goal_scale: Array
    seen: Array | None = None  # where the observation shows the achieved goal, if it does
    far: Array | None = None  # where observations are cut (None: at `FAR`)


def achieved_in(norm: Norm, obs: Array) -> Array:
    """The achieved goal, read off the observation; without one, the middle of the goals' range."""
    return norm.goal_shift if norm.seen is None else obs[..., norm.seen]


class Policy(NamedTuple):
    """mu(s; g): what an actor needs and nothing else."""

    net: MLP
    norm: Norm
    log_std: Array | None = None  # of actions drawn around mu while collecting; None: exploration
    noise: Array | None = None  # exploration's, where it changes while learning


def greedy(policy: Policy) -> Policy:
    """The same policy without what it explores by."""
    return Policy(policy.net, policy.norm)


def normalised(norm: Norm, obs: Array) -> Array:
    """An observation as nets read it.

    What random roll-outs never showed (an object that falls from the table) is cut. A norm of fewer
    numbers than the observation has is for its first ones.
    """
    far = FAR if norm.far is None else norm.far
    obs = obs[..., : norm.obs_shift.shape[-1]]
    return obs.__array_namespace__().clip((obs - norm.obs_shift) / norm.obs_scale, -far, far)


def features(norm: Norm, obs: Array, goal: Array) -> Array:
    """The input that actor, critic and density share: the observation, and how far the goal is.

    A norm without goals is of a net that reads none, whatever is asked for.
    """
    xp = obs.__array_namespace__()
    goal = goal[..., : norm.goal_shift.shape[-1]]
    gap = xp.clip((goal - achieved_in(norm, obs)) / norm.goal_scale, -FAR, FAR)
    return xp.concat([normalised(norm, obs), gap], axis=-1)


def leaning(policy: Policy, obs: Array, goal: Array) -> Array:
    """The net's output, whose tanh is the action."""
    return mlp(policy.net, features(policy.norm, obs, goal))


def act(policy: Policy, obs: Array, goal: Array) -> Array:
    """The deterministic action in [-1, 1] for one observation or a batch of them."""
    x = leaning(policy, obs, goal)
    return x.__array_namespace__().tanh(x)
