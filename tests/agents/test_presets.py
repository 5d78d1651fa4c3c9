"""Presets: every one of them learns, and those of the paper hold the numbers of its tables."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from small_tasks import KEY, demo_spec, filled, goal_spec, random_ring
from uvd.agents import ALGORITHMS
from uvd.collect.exploration import CollectConfig
from uvd.core.config import flatten
from uvd.settings import build, presets
from uvd.training.learner import state_arrays

# Equal sizes: operations are compiled one by one, each once for a shape.
TINY = {
    "batch": 4, "hidden": (4,), "actor_hidden": (), "flow_hidden": (4,), "bijectors": 2,
    "discriminator_hidden": (4,), "discriminator_steps": 1, "epochs": 1,
}  # fmt: skip
GOALS = goal_spec(obs=4, action=4, goal_scale=(1.0,) * 4, varying=(0, 1, 2, 3))
PAIRS = replace(demo_spec(obs=4, action=4, demos=4, varying=(0, 1, 2, 3)), cycle_steps=4)
CHANGES = replace(PAIRS, demos=PAIRS.demos._replace(action=None))
STATES = replace(PAIRS, demos=PAIRS.demos._replace(action=None, next_obs=None))
UPDATE = 40_000  # whatever starts late has started, and all that is done now and then is due


SPECS = {"demos": PAIRS, "goals": GOALS}


def settings_of(name, preset, spec):
    """A preset at a tiny size, with the defaults that follow from the demonstrations."""
    algorithm = ALGORITHMS[name]
    known = flatten(algorithm.config())
    given = {setting: value for setting, value in TINY.items() if setting in known}
    asked = {**presets(name)[preset].settings, **given}
    defaults = algorithm.defaults_for(asked, spec.demos) if spec.demos else {}
    return build(name, "Any-v0", preset, given, defaults=defaults).settings


def switches(settings):
    """What settings decide about an update: all but collection, and how large numbers are."""
    return {
        name: value > 0 if type(value) in (int, float) else value
        for name, value in flatten(settings).items()
        if name not in flatten(CollectConfig())
    }


def cases():
    """Presets that differ only in sizes of numbers run the same code: one of them is enough."""
    seen = []
    for name, algorithm in ALGORITHMS.items():
        spec = SPECS[algorithm.learns_from]
        for preset in presets(name):
            case = (name, switches(settings_of(name, preset, spec)))
            if case not in seen:
                seen.append(case)
                yield pytest.param(name, preset, spec, id=f"{name} {preset}")
    yield pytest.param("kdi", "default", CHANGES, id="kdi of changes")
    yield pytest.param("kdi", "default", STATES, id="kdi of states")
    yield pytest.param("dac", "default", STATES, id="dac of states")


def random_state(agent):
    """Random nets, optimisers at their start, and feature ranges of size 1."""

    def fill(path, x):
        name = jax.tree_util.keystr(path)
        if name.endswith("achieved_columns"):
            return jnp.arange(*x.shape)
        if "_opt" in name or name.endswith("_shift"):
            return jnp.zeros(x.shape, x.dtype)
        return jnp.ones(x.shape, x.dtype) if name.endswith("_scale") else filled(x)

    return jax.tree_util.tree_map_with_path(fill, jax.eval_shape(agent.init, KEY))


@pytest.mark.parametrize(("name", "preset", "spec"), cases())
def test_every_preset_learns(name, preset, spec):
    """One update, without compilation, moves every net and stays finite."""
    agent = ALGORITHMS[name].make(settings_of(name, preset, spec), spec)
    state = random_state(agent)
    with jax.disable_jit():
        learned, metrics = agent.update(state, random_ring(spec), KEY, jnp.asarray(UPDATE))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((learned, metrics)))
    before, after = state_arrays(state), state_arrays(learned)
    nets = [x for x in before if x.endswith("weights[1]") and "_opt" not in x]
    assert nets
    for net in nets:
        assert (before[net] != after[net]).any(), net


# The rows of Table 1, as settings. `paper` is for push.
TABLE_1 = {
    "updates_per_step": 1.0,  # environment steps per iteration
    "gamma": 0.98,
    "batch": 512,
    "capacity": 1_500_000,  # replay memory size
    "optimiser": "adam",
    "actor_hidden": (),  # as `hidden`
    "hidden": (400, 400),
    "noise": 0.1,  # exploration noise, and nothing else
    "random": 0.0,
    "target_noise": 0.0,
}
TABLE_1_BASELINES = {"actor_lr": 2e-4, "critic_lr": 2e-4, "critic_head": "tanh"}
TABLE_1_UVD = {
    "short": 50_000,
    "lookahead": 4,  # sequence truncation
    "actor_lr": 8e-4,
    "critic_lr": 8e-4,
    "critic_head": "linear",
    "flow_hidden": (300, 300),
    "bijectors": 6,
    "flow_lr": 2e-4,
}
# The rows of Table 2 for HalfCheetah, and those in which Humanoid differs.
TABLE_2 = {
    "updates_per_step": 0.1,
    "gamma": 0.995,
    "batch": 256,
    "capacity": 1_500_000,
    "short": 500_000,
    "lookahead": 4,
    "optimiser": "adam",
    "actor_hidden": (400, 300),
    "noise": 0.3,
    "late_updates": 25_000,
    "late_noise": 0.1,
    "random": 0.0,
    "target_noise": 0.0,
    "actor_lr": 3e-4,
    "hidden": (400, 400),
    "critic_head": "linear",
    "critic_lr": 3e-4,
    "flow_hidden": (400, 400),
    "bijectors": 5,
    "flow_lr": 1e-4,
    "l2": 1e-5,
    "smoothing": 0.1,  # spatial
    "temporal_smoothing": 0.0,
}
TABLE_2_HUMANOID = {
    **TABLE_2,
    "noise": 0.1,
    "late_updates": 0,
    "critic_lr": 1e-4,
    "flow_lr": 2e-5,
    "l2": 1e-6,
    "temporal_smoothing": 0.98,
}


@pytest.mark.parametrize(
    ("name", "preset", "table"),
    [
        ("td3", "paper", TABLE_1 | TABLE_1_BASELINES),
        ("her", "paper", TABLE_1 | TABLE_1_BASELINES),
        ("uvd", "paper", TABLE_1 | TABLE_1_UVD),
        ("uvd", "paper-slide", TABLE_1 | TABLE_1_UVD | {"bijectors": 5}),
        ("vdi", "paper", TABLE_2),
        ("vdi", "paper-humanoid", TABLE_2_HUMANOID),
    ],
)
def test_presets_of_the_paper_are_its_tables(name, preset, table):
    settings = flatten(build(name, "Any-v0", preset).settings)
    assert {setting: settings[setting] for setting in table} == table


def test_critics_of_the_baselines_reach_50():
    """Table 1: 50 tanh. The bound of the values is 1 / (1 - 0.98)."""
    assert GOALS.value_range(0.98) == pytest.approx((-50.0, 0.0))
