"""Fresh learners, which noise holds when, and a state as named arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from counting import counting_agent, updates_of
from uvd.collect.exploration import CollectConfig
from uvd.core.errors import UserError
from uvd.settings import RunSettings
from uvd.tasks import make_task
from uvd.training.learner import (
    behaviour_policy,
    best_policy,
    cycle_keys,
    exploration_at,
    make_init,
    state_arrays,
    state_from_arrays,
)

TASK = make_task("PointReach-v0")  # of 50 steps
COLLECT = CollectConfig(noise=0.4, late_noise=0.1, late_updates=100, random=0.2, hold=2)


@pytest.mark.parametrize(("updates", "noise"), [(-50, 0.4), (100, 0.4), (101, 0.1), (5000, 0.1)])
def test_late_noise_holds_after_so_many_updates(updates, noise):
    for n in (updates, jnp.asarray(updates)):
        how = exploration_at(COLLECT, n)
        assert float(how.noise) == pytest.approx(noise)
        assert (how.random, how.hold) == (0.2, 2)
    never = CollectConfig(noise=0.4, late_noise=0.1)
    assert exploration_at(never, updates).noise == 0.4


@pytest.mark.parametrize(
    ("capacity", "envs", "rows"),
    [(500, 4, 10 * 51), (510, 4, 11 * 51), (0, 4, 5 * 51)],  # whole episodes, a row more than steps
)
def test_the_buffer_holds_whole_episodes(capacity, envs, rows):
    collect, run = CollectConfig(capacity=capacity), RunSettings(seeds=2, envs=envs)
    agent = counting_agent(2, 2, 2)
    init = make_init(agent, TASK, collect, run, plays_ahead=False)
    learner = jax.eval_shape(lambda: init(3, 2))
    assert learner.ring.obs.shape == (2, rows, 2)


def test_a_fresh_learner_has_what_its_run_needs():
    plain, scored = counting_agent(2, 2, 2), counting_agent(2, 2, 2, peak=5)

    def state(agent, confirm=0, ahead=False):
        run = RunSettings(confirm_cycles=confirm)
        return make_init(agent, TASK, CollectConfig(capacity=50), run, ahead)(0, 2).state

    assert state(plain).best == state(plain).acting == ()
    assert updates_of(state(plain, ahead=True).acting.net) == [0, 0]
    assert not state(scored).best.found.any()
    assert state(scored).best.candidate == ()
    assert state(scored, confirm=3).best.candidate.cycles.tolist() == [-1, -1]


def test_a_candidate_plays_and_the_best_policy_is_the_result():
    agent = counting_agent(2, 2, 2, peak=5)
    init = make_init(agent, TASK, COLLECT, RunSettings(confirm_cycles=3), False)
    state = jax.tree.map(lambda x: x[0], init(0, 1).state)._replace(agent=jnp.asarray(9.0))
    nets = {n: agent.policy(jnp.asarray(float(n))).net for n in (2, 4)}
    waiting = state.best._replace(
        net=nets[2],
        candidate=state.best.candidate._replace(net=nets[4], cycles=jnp.asarray(1)),
    )
    confirming = state._replace(best=waiting)
    assert updates_of(behaviour_policy(agent, confirming).net) == 4
    assert updates_of(best_policy(agent, confirming).net) == 2
    assert updates_of(behaviour_policy(agent, state).net) == 9
    plain = counting_agent(2, 2, 2)
    alone = state._replace(best=())
    assert updates_of(best_policy(plain, alone).net) == 9


def test_keys_differ_by_cycle_and_use():
    keys = [cycle_keys(jax.random.key(seed), jnp.asarray(c)) for seed in (0, 1) for c in (0, 1)]
    numbers = {tuple(jax.random.key_data(k).tolist()) for pair in keys for k in pair}
    assert len(numbers) == 8


def test_a_state_is_named_arrays_and_back():
    state = {"net": [jnp.arange(3.0), jnp.ones((2, 2))], "step": jnp.asarray(7)}
    arrays = state_arrays(state)
    assert sorted(arrays) == ["['net'][0]", "['net'][1]", "['step']"]
    assert all(isinstance(x, np.ndarray) for x in arrays.values())
    jax.tree.map(np.testing.assert_array_equal, state_from_arrays(state, arrays), state)
    for wrong in ({**arrays, "['net'][0]": np.zeros(4)}, {"['step']": arrays["['step']"]}):
        with pytest.raises(UserError, match=r"no '\['net'\]\[0\]' of the right shape"):
            state_from_arrays(state, wrong)
