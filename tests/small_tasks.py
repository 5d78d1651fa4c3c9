"""Small made-up tasks, transitions and replay buffers for the tests of algorithms."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from uvd.agents import Agent, Spec
from uvd.agents.actor_critic import ActorCritic
from uvd.agents.agent import DemoSteps
from uvd.core.episode import Episode
from uvd.core.policy import MLP, Norm, features, mlp
from uvd.core.replay import Batch, Ring, init_ring, insert_all

KEY = jax.random.key(0)
GOAL_RADIUS = 0.1


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The compiled function, with NumPy arrays as results: what a test does with them is quick."""
    run = jax.jit(function)
    return lambda *args: jax.tree.map(np.asarray, run(*args))


def draw(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def near(achieved, goal):
    return ((achieved - goal) ** 2).sum(-1) < GOAL_RADIUS**2


def goal_pairs(dim: int) -> tuple[np.ndarray, np.ndarray]:
    """What is achieved, `[3, 500, dim]`, and goals at most 1 away; some are achieved exactly."""
    rng = np.random.default_rng(0)
    goal = rng.uniform(-1, 1, (3, 500, dim)).astype(np.float32)
    way = rng.standard_normal(goal.shape)
    way *= rng.uniform(0, 1, (3, 500, 1)) / np.linalg.norm(way, axis=-1, keepdims=True)
    achieved = (goal + way).astype(np.float32)
    achieved[:, 0] = goal[:, 0]
    return achieved, goal


def unit_norm(obs: int, goal: int) -> Norm:
    """Features are the numbers themselves."""
    zeros = lambda n: np.zeros(n, np.float32)  # noqa: E731
    return Norm(zeros(obs), 1 + zeros(obs), zeros(goal), 1 + zeros(goal))


def goal_spec(obs=3, action=2, goal_scale=(1.0, 1.0, 1.0), varying=(0, 2)) -> Spec:
    """A task with goals."""
    n = len(goal_scale)
    norm = unit_norm(obs, n)._replace(goal_scale=np.array(goal_scale, np.float32))
    return Spec(obs, action, n, near, norm, varying)


def demo_spec(varying=(0, 2), demos=12, obs=3, action=2) -> Spec:
    """A task with random demonstrations of which some columns vary."""
    rng = np.random.default_rng(0)
    none = np.zeros(0, np.float32)
    norm = Norm(
        draw(rng, obs), rng.uniform(0.5, 2, obs).astype(np.float32), none, none,
        np.zeros(0, np.int32),
    )  # fmt: skip
    steps = DemoSteps(draw(rng, demos, obs), draw(rng, demos, action), draw(rng, demos, obs))
    return Spec(obs, action, 0, near, norm, (), demos=steps, varying_obs=varying)


def make_batch(n: int, spec: Spec, seed: int = 3, **changes: Any) -> Batch:
    """Random transitions, with some columns replaced."""
    rng = np.random.default_rng(seed)
    obs, action, goal = spec.obs_dim, spec.action_dim, spec.goal_dim
    batch = Batch(
        row=np.arange(n),
        obs=draw(rng, n, obs),
        action=np.tanh(draw(rng, n, action)),
        next_obs=draw(rng, n, obs),
        achieved=draw(rng, n, goal),
        next_achieved=draw(rng, n, goal),
        goal=draw(rng, n, goal),
        terminated=np.zeros(n, bool),
        reward=np.zeros(n, np.float32),
    )
    return Batch(*map(jnp.asarray, batch._replace(**changes)))


def make_ring(obs, action, achieved=None, goal=None, terminated=False, length=None, rows=None):
    """A replay buffer of episodes `[E, T + 1, obs]` and `[E, T, action]`, as large as they are."""
    e, t, _ = np.shape(action)
    achieved = np.zeros((e, t + 1, 0)) if achieved is None else achieved
    episodes = Episode(
        obs=np.asarray(obs, np.float32),
        action=np.asarray(action, np.float32),
        achieved=np.asarray(achieved, np.float32),
        goal=np.zeros((e, 0), np.float32) if goal is None else np.asarray(goal, np.float32),
        length=np.full(e, t, np.int32) if length is None else np.asarray(length, np.int32),
        terminated=np.broadcast_to(terminated, e),
        success=np.zeros((e, t), bool),
        reward=np.zeros((e, t), np.float32),
    )
    return insert_episodes(episodes, rows)


@partial(jax.jit, static_argnums=1)
def insert_episodes(episodes: Episode, rows: int | None = None) -> Ring:
    """A replay buffer of a stack of episodes."""
    e, t, action = episodes.action.shape
    ring = init_ring(rows or e * (t + 1), episodes.obs.shape[-1], action, episodes.goal.shape[-1])
    return insert_all(ring, episodes)


def random_ring(spec: Spec, episodes: int = 6, steps: int = 4, terminated=False) -> Ring:
    """A replay buffer of noise."""
    rng = np.random.default_rng(0)
    obs = draw(rng, episodes, steps + 1, spec.obs_dim)
    action = np.tanh(draw(rng, episodes, steps, spec.action_dim))
    achieved = draw(rng, episodes, steps + 1, spec.goal_dim)
    return make_ring(obs, action, achieved, draw(rng, episodes, spec.goal_dim), terminated)


def filled(shapes: Any, seed: int = 0) -> Any:
    """Random numbers in arrays of these shapes: fresh parameters without compilation."""
    rng = np.random.default_rng(seed)

    def fill(x):
        return np.float32(draw(rng, *x.shape) / max([1, *x.shape[-2:]]) ** 0.5)

    return jax.tree.map(fill, shapes)


def zeros(shapes: Any) -> Any:
    """Zeros in arrays of these shapes."""
    return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)


def agent_state(agent: Agent | ActorCritic, norm: Norm, seed: int = 0) -> Any:
    """A random state of an off-policy algorithm: optimisers at their start, slow copies equal."""
    shapes = jax.eval_shape(agent.init, KEY)

    def at_start(path, number, shape):
        return zeros(shape) if "_opt" in jax.tree_util.keystr(path) else number

    state = jax.tree_util.tree_map_with_path(at_start, filled(shapes, seed), shapes)
    td3 = getattr(state, "td3", state)
    if td3.norm.achieved_columns is None:
        norm = norm._replace(achieved_columns=None)
    td3 = td3._replace(norm=norm, actor_target=td3.actor, critic_target=td3.critic)
    return state._replace(td3=td3) if hasattr(state, "td3") else td3


def shaken(tree: Any, size: float = 0.3, seed: int = 1) -> Any:
    """The same numbers with noise."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: x + size * draw(rng, *x.shape), tree)


def constant(net: MLP, *output: Any) -> MLP:
    """A net of the same shape whose output is the same everywhere (twins: one for each)."""
    zero = zeros(net)
    last = np.broadcast_to(np.float32(output), net.biases[-1].T.shape).T
    return zero._replace(biases=(*zero.biases[:-1], last))


def put(x: Any, *entries: tuple[Any, Any]) -> np.ndarray:
    """A copy with other entries: pairs of an index and its value."""
    x = np.array(x)
    for index, value in entries:
        x[index] = value
    return x


def plain_twins(net: MLP, norm: Norm, obs, goal, action) -> np.ndarray:
    """Outputs of both critics by NumPy, `[2, batch]`."""
    obs, goal, action = map(np.asarray, (obs, goal, action))
    norm = jax.tree.map(np.asarray, norm)
    inputs = np.concatenate([features(norm, obs, goal), action], -1)
    twins = [jax.tree.map(lambda x, i=i: np.asarray(x[i]), net) for i in (0, 1)]
    return np.stack([mlp(one, inputs)[..., 0] for one in twins])


def differs(a: Any, b: Any) -> bool:
    """Whether any number of two trees differs."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return any((np.asarray(x) != np.asarray(y)).any() for x, y in pairs)


def assert_close(a: Any, b: Any, **how: float) -> None:
    """All numbers of two trees are close."""
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), **how)
