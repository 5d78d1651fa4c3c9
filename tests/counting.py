"""An agent whose action is the number of its updates; a plain model of which policy plays when."""

import jax
import jax.numpy as jnp
import numpy as np

from uvd.agents.agent import Agent
from uvd.core.policy import MLP, Norm, Policy
from uvd.core.replay import newest

UNIT = 0.01  # the action after n updates is n * UNIT


def unit_norm(obs, goal):
    """Features are the numbers themselves."""
    return Norm(*(jnp.full(n, x) for n, x in [(obs, 0.0), (obs, 1.0), (goal, 0.0), (goal, 1.0)]))


def counting_agent(obs, goal, action, peak=None, log_std=None):
    """An update counts itself, and reports its number, the buffer's size and a random number.

    With a `peak`, a cycle's score is the higher, the nearer its last action is to that of a policy
    with so many updates.
    """

    def policy(updates):
        bias = jnp.full(action, jnp.arctanh(updates * UNIT))
        net = MLP((jnp.zeros((obs + goal, action)),), (bias,))
        return Policy(net, unit_norm(obs, goal), log_std)

    def update(state, ring, key, step):
        return state + 1, {"step": step, "rows": ring.last, "key": jax.random.uniform(key)}

    def score(state, ring):
        (row,), _ = newest(ring, 1)
        return -abs(ring.action[row, 0] / UNIT - peak)

    return Agent(lambda key: jnp.zeros(()), update, policy, score if peak is not None else None)


def updates_of(net):
    """How many updates a policy has seen, by its net; of each seed."""
    return np.rint(np.tanh(np.asarray(net.biases[-1])[..., 0]) / UNIT).astype(int).tolist()


def expected_run(cycles, warm, updates, peak, confirm=0, ahead=False, first_counted=0):
    """Which policies play, and which one is the best after each cycle, as numbers of updates.

    `ahead`: the policy of a cycle is chosen before the cycle before it is learned from. The best
    policy is None until the score of a cycle has counted.
    """
    played, bests = [], []
    learned = acting = 0
    best, candidate = None, None  # (updates, score); (updates, its scores)
    for cycle in range(cycles):
        newest_policy = candidate[0] if candidate else learned
        player = acting if ahead else newest_policy
        played.append(player)
        if cycle >= warm:
            score = -abs(player - peak)
            if candidate and player == candidate[0]:
                candidate[1].append(score)
                mean = sum(candidate[1]) / len(candidate[1])
                if best is not None and mean <= best[1]:
                    candidate = None
                elif len(candidate[1]) == confirm:
                    best, candidate = (player, mean), None
            elif not candidate and cycle >= first_counted:
                better = best is None or (score > best[1] and player != best[0])
                if better and confirm:
                    candidate = (player, [])
                elif better:
                    best = (player, score)
            learned += updates
            acting = newest_policy
        bests.append(None if best is None else best[0])
    return played, bests
