"""Settings as data: presets, flat names, and the checks that refuse nonsense before it runs.

A setting lives in a frozen dataclass, an algorithm's own beside TD3's (`td3`). Users see one flat
list of names; `build` and `flatten` go between the two.
"""

import dataclasses
import math
import typing
from dataclasses import dataclass
from typing import Any

from uvd.agents import get_algorithm
from uvd.agents.discriminator import READS, REWARDS
from uvd.agents.her import STRATEGIES
from uvd.agents.kernels import COMPARE
from uvd.agents.td3 import HEADS, OPTIMISERS, TD3Config
from uvd.agents.uvd import COMBINE, GOALS
from uvd.agents.vdi import DENSITIES
from uvd.errors import UserError, nearest

# Table 1 of the paper. Where it is silent, as the paper's text or its authors' code has it.
_PAPER_TD3 = {
    "gamma": 0.98, "batch": 512, "hidden": (400, 400), "actor_hidden": (), "actor_lr": 2e-4,
    "critic_lr": 2e-4, "tau": 0.01, "policy_delay": 2, "target_noise": 0.0, "action_penalty": 0.0,
    "critic_head": "tanh", "critic_start": 0.0, "noise": 0.1, "random": 0.0, "hold": 1,
    "capacity": 1_500_000, "updates_per_step": 1.0, "warmup": 1000, "warmup_random": False,
    "actor_start": 0, "goal_input": "absolute", "optimiser": "adam", "critic_tau": 0.0,
    "actor_scale": 0.1, "leaning_penalty": 0.0, "beyond": False, "range_noise": 0.0,
    "critic_norm": False, "lr_half": 0,
}  # fmt: skip
_PAPER_UVD = {
    "actor_lr": 8e-4, "critic_lr": 8e-4, "critic_head": "linear", "combine": "max-paper",
    "td_goals": "intended", "actor_goals": "intended", "intended": 1.0, "intended_early": 1.0,
    "futures": 0.0, "horizon": 4,
    "offsets": "geometric", "smoothing": 0.0, "smoothing_half": 0, "smoothing_long": 0.0,
    "density_scale": 1.0, "temporal_smoothing": 0.0,
    "bijectors": 6, "flow_hidden": (300, 300), "flow_lr": 2e-4, "flow_decay": 0.0,
    "flow_delay": 0, "short": 50_000,
}  # fmt: skip

# TD3 on rewards, with the sizes that are usual for MuJoCo's walkers: makes experts.
_EXPERT = {
    "gamma": 0.99, "batch": 256, "hidden": (256, 256), "actor_lr": 3e-4, "critic_lr": 3e-4,
    "tau": 0.005, "policy_delay": 2, "target_noise": 0.2, "action_penalty": 0.0,
    "critic_head": "linear", "critic_start": 0.0, "noise": 0.1, "random": 0.0, "hold": 1,
    "capacity": 1_000_000, "updates_per_step": 1.0, "warmup": 25_000, "warmup_random": True,
    "actor_start": 0, "critic_norm": True,
}  # fmt: skip

# For goals much smaller than the task: draws from the density are a few hundredths of the goals'
# range off, true futures are exact.
_PRECISE = {"futures": 0.8, "smoothing_half": 4000}

# The sizes of the default for the Fetch robot, and HER as it does best there: Figure 2.
_FETCH = {
    "batch": 1024, "hidden": (256, 256, 256), "critic_lr": 1e-3, "updates_per_step": 0.5,
    "warmup": 2000, "hold": 1, "capacity": 1_000_000,
}  # fmt: skip
_FETCH_TD3 = {
    **_FETCH, "actor_lr": 1e-3, "tau": 0.01, "critic_head": "linear", "action_penalty": 0.1,
}  # fmt: skip
_FETCH_HER = {**_FETCH_TD3, "strategy": "future", "k": 4}
_FETCH_UVD = {**_FETCH, "actor_lr": 5e-4}

# Table 2 of the paper as it is printed, HalfCheetah's and Humanoid's. What it leaves open: as the
# code.
_PAPER_VDI = {
    **_PAPER_TD3,
    "gamma": 0.995, "batch": 256, "hidden": (400, 400), "actor_hidden": (400, 300),
    "actor_lr": 3e-4, "critic_lr": 3e-4, "tau": 0.005, "policy_delay": 1, "critic_head": "linear",
    "noise": 0.3, "late_noise": 0.1, "late_updates": 25_000, "capacity": 1_500_000,
    "short": 500_000, "updates_per_step": 0.1, "density": "flow", "combine": "max",
    "horizon": 4, "average": True, "pool": 0, "compare": "states", "smoothing": 0.1,
    "smoothing_half": 0, "smoothing_end": 0.0, "temporal_smoothing": 0.0, "weight_bound": 4.0,
    "bijectors": 5, "keep": False, "trials": 0, "flow_hidden": (400, 400), "flow_lr": 1e-4,
    "l2": 1e-5, "flow_delay": 8000, "early_delay": 0, "early_updates": 0, "density_only": 8000,
    "actor_start": 9000,
}  # fmt: skip
_PAPER_HUMANOID = {
    **_PAPER_VDI,
    "noise": 0.1, "late_updates": 0, "critic_lr": 1e-4, "flow_lr": 2e-5, "l2": 1e-6,
    "temporal_smoothing": 0.98, "flow_delay": 50_000, "early_delay": 5000, "early_updates": 50_000,
    "density_only": 5000, "actor_start": 8000,
}  # fmt: skip
# As the code had it. The likelihood is a mean over 16 dimensions there, against which l2 counts 16
# times as much.
_AUTHORS = {
    **_PAPER_VDI,
    "critic_head": "huber", "goal_input": "relative", "late_updates": 250_000,
    "optimiser": "rmsprop", "critic_tau": 0.0025, "critic_start": -0.025, "actor_scale": 1.0,
    "beyond": True, "range_noise": 0.3, "flow_lr": 1e-5, "l2": 1.6e-4,
}  # fmt: skip
# What the locomotion results are made with: against actors at the ends of their range and critics
# that promise too much (docs/vdi.md).
_CHEETAH = {
    **_PAPER_VDI,
    "critic_head": "huber", "goal_input": "relative", "gamma": 0.95, "critic_norm": True,
    "action_penalty": 0.005, "noise": 0.3, "late_noise": 0.15, "range_noise": 0.3,
}  # fmt: skip
# Who can fall is to stay, not to pass by (docs/experiments.md, eighth round).
_HUMANOID = {
    **_CHEETAH,
    "combine": "sum", "horizon": 1, "pool": 4, "smoothing": 0.3, "gamma": 0.98,
    "action_penalty": 0.001, "noise": 0.15, "late_updates": 0, "updates_per_step": 0.4,
    "actor_lr": 6e-4, "critic_lr": 6e-4, "flow_lr": 3e-4, "lr_half": 200_000, "flow_delay": 2000,
    "density_only": 2000, "actor_start": 2500,
}  # fmt: skip

# The gradient of log d as one value, F / d (Eq. 8), of whole densities under a wide kernel (0.2
# times the root of HalfCheetah's 16 columns), at TD3's usual pace: for few states.
_RATIO = {
    "gamma": 0.98, "batch": 128, "hidden": (256, 256), "actor_hidden": (), "actor_lr": 3e-4,
    "critic_lr": 6e-4, "tau": 0.005, "policy_delay": 2, "target_noise": 0.2, "action_penalty": 0.0,
    "critic_head": "huber", "critic_norm": True, "noise": 0.15, "late_noise": 0.1,
    "late_updates": 50_000, "random": 0.0, "hold": 1, "range_noise": 0.3, "capacity": 1_000_000,
    "updates_per_step": 1.0, "warmup": 10_000, "warmup_random": True, "combine": "sum",
    "horizon": 1, "pool": 8, "average": False, "smoothing": 0.8, "weight_bound": 30.0,
    "bijectors": 4, "flow_hidden": (64, 64), "flow_lr": 1e-3, "flow_delay": 500,
    "density_only": 1000, "actor_start": 1500, "short": 20_000,
}  # fmt: skip
# The same without flows, from pairs of state and action: 22 columns, of whose root the kernel is
# 0.25 times and in the end 0.15. A short memory of 4 episodes and bounded weights, for policies go
# round between gaits, and the best of them is kept (docs/experiments.md, fourteenth round).
_KERNEL = {
    **_RATIO,
    "density": "kernel", "pool": 1000, "compare": "pairs", "smoothing": 1.17,
    "smoothing_half": 60_000, "smoothing_end": 0.7, "weight_bound": 2.0, "density_only": 0,
    "actor_start": 500, "late_noise": 0.07, "late_updates": 60_000, "keep": True, "short": 4000,
}  # fmt: skip
# The same without actions: 32 columns, narrower (0.18 times their root, in the end 0.11), and noise
# enough to leave the first gait that pays.
_CHANGES = {
    **_KERNEL,
    "compare": "changes", "smoothing": 1.0, "smoothing_end": 0.6, "noise": 0.3, "late_noise": 0.1,
    "late_updates": 100_000,
}  # fmt: skip
# Humanoid's states with the action before, 60 columns: 0.15 times their root.
_KERNEL_HUMANOID = {
    **_RATIO,
    "density": "kernel", "pool": 1000, "smoothing": 1.16, "density_only": 0, "actor_start": 500,
    "late_noise": 0.1, "late_updates": 600_000, "batch": 256, "lr_half": 400_000, "keep": True,
    "trials": 4,
}  # fmt: skip

# The rivals on MuJoCo's walkers, each with the settings its own authors used there, as far as they
# apply: GAIL's in OpenAI's baselines (which the paper ran), with PPO in place of TRPO.
_DAC_WALKERS = {
    "gamma": 0.99, "batch": 100, "hidden": (400, 300), "actor_lr": 1e-3, "critic_lr": 1e-3,
    "tau": 0.005, "policy_delay": 2, "target_noise": 0.2, "action_penalty": 0.0, "noise": 0.1,
    "random": 0.0, "hold": 1, "capacity": 1_000_000, "updates_per_step": 1.0, "warmup": 10_000,
    "warmup_random": True, "actor_start": 1000, "discriminator_hidden": (100, 100),
}  # fmt: skip
_GAIL_WALKERS = {
    "gamma": 0.995, "gae": 0.97, "hidden": (100, 100), "actor_lr": 3e-4, "critic_lr": 1e-3,
    "epochs": 5, "start_std": 1.0, "discriminator_hidden": (100, 100), "discriminator_lr": 3e-4,
    "capacity": 100_000,
}  # fmt: skip
_BC_WALKERS = {"hidden": (400, 300), "actor_lr": 3e-4, "l2": 1e-5, "updates_per_step": 0.1}

# `default` is the dataclass as it stands: what learns best on the built-in tasks. `paper` is as
# literal as it gets.
PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "td3": {"default": {}, "fetch": _FETCH_TD3, "paper": _PAPER_TD3, "expert": _EXPERT},
    "her": {
        "default": {}, "fetch": _FETCH_HER, "paper": {**_PAPER_TD3, "strategy": "future", "k": 4}
    },
    "uvd": {
        "default": {}, "fetch": _FETCH_UVD, "paper": {**_PAPER_TD3, **_PAPER_UVD},
        "precise": _PRECISE, "fetch-precise": {**_FETCH_UVD, **_PRECISE},
    },
    "vdi": {
        "default": {}, "paper": _PAPER_VDI, "paper-humanoid": _PAPER_HUMANOID,
        "cheetah": _CHEETAH, "humanoid": _HUMANOID, "ratio": _RATIO, "kernel": _KERNEL,
        "changes": _CHANGES,        "kernel-humanoid": _KERNEL_HUMANOID, "authors": _AUTHORS,
    },
    "bc": {"default": {}, "walkers": _BC_WALKERS},
    "dac": {"default": {}, "walkers": _DAC_WALKERS},
    "gail": {"default": {}, "walkers": _GAIL_WALKERS},
}  # fmt: skip

# What a preset is for, where its name does not say.
PRESETS_ABOUT = {
    "paper": "the paper's tables and algorithms to the letter",
    "paper-humanoid": "the same for Humanoid",
    "authors": "HalfCheetah as the authors' released code has it",
    "fetch": "the Fetch tasks",
    "precise": "goals of a hundredth of the area",
    "fetch-precise": "the same on the Fetch tasks",
    "expert": "walkers, from rewards",
    "walkers": "HalfCheetah and Humanoid",
    "cheetah": "HalfCheetah from 50 states or more, no actions; millions of steps",
    "humanoid": "Humanoid with learned densities",
    "ratio": "few states: one value of F / d for all of them",
    "kernel": "few pairs of HalfCheetah: ratio without flows, the best policy kept",
    "changes": "few states of HalfCheetah and what came next, no actions: kernel over both",
    "kernel-humanoid": "Humanoid: ratio without flows, the best policy kept",
}

_ON_WALKERS = {"td3": "expert", "bc": "walkers", "dac": "walkers", "gail": "walkers"}
# By the beginning of a task's id, the first that fits.
SUITED: dict[str, dict[str, str]] = {
    "FetchPushSparse": {"td3": "fetch", "her": "fetch", "uvd": "fetch-precise"},
    "FetchPush": {"td3": "fetch", "her": "fetch", "uvd": "fetch"},
    "FetchSlide": {"td3": "fetch", "her": "fetch", "uvd": "fetch"},
    "HalfCheetah": {**_ON_WALKERS, "vdi": "cheetah"},
    "Humanoid": {**_ON_WALKERS, "vdi": "kernel-humanoid"},
}

_CHOICES = {
    "critic_head": list(HEADS),
    "optimiser": list(OPTIMISERS),
    "goal_input": ["relative", "absolute"],
    "strategy": [*STRATEGIES, "paper"],
    "combine": list(COMBINE),
    "density": list(DENSITIES),
    "compare": list(COMPARE),
    "td_goals": list(GOALS),
    "actor_goals": list(GOALS),
    "offsets": ["geometric", "uniform"],
    "reads": list(READS),
    "reward": list(REWARDS),
}


@dataclass(frozen=True)
class DemoSettings:
    """What vdi, gail, dac and bc imitate: required for them, refused for others."""

    demos: str | None = None
    """File, folder, local Minari dataset or shipped name of demonstrations (`uvd list`)."""
    trajectories: int | None = None
    """How many of them, the first ones (all if not given)."""
    every: int = 1
    """Only every n-th step of each."""
    offset: int | None = None
    """The first step taken (every // 2 if not given)."""
    previous_action: bool = False
    """The action before becomes part of every observation, played and demonstrated."""


@dataclass(frozen=True)
class RunSettings:
    """How long, how often, how many."""

    seeds: int = 1
    """Seeds trained at once, as one program."""
    steps: int = 100_000
    """Environment steps of each seed, rounded up to whole reports."""
    envs: int = 4
    """Episodes played between two bursts of updates, per seed."""
    eval_every: int = 0
    """Steps between reports (0: a twentieth of all steps)."""
    eval_episodes: int = 100
    """Episodes of each evaluation; their starts, goals and noise are fixed."""
    first_seed: int = 0
    """The seeds are first_seed, first_seed + 1, ..."""
    save_seconds: float = 30.0
    """Seconds between checkpoints: the most that a kill can cost."""
    workers: int = 0
    """Processes that play a Gymnasium environment (0: one a core); results do not depend on it."""
    episode_steps: int = 0
    """Steps after which a training episode of a Gymnasium environment is cut, though nothing ended
    (0: never): more starts, fewer steps of lying where it fell. Evaluations play to the end."""
    late_episode_steps: int = 0
    """The same once `late_steps` have been played (0: never)."""
    late_steps: int = 0
    """Steps of a seed after which `late_episode_steps` holds (0: never)."""
    episode_seconds: float = 300.0
    """Seconds after which an environment's episode counts as hung and is played again."""


def flatten(config: Any) -> dict[str, Any]:
    """An algorithm's settings as one flat dictionary."""
    flat: dict[str, Any] = {}
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        flat.update(flatten(value) if dataclasses.is_dataclass(value) else {f.name: value})
    return flat


def _coerce(name: str, value: Any, default: Any, kind: Any) -> Any:
    """The value in the field's own type; a message that names the setting if it does not fit."""
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}[str(value).lower()]
        if isinstance(default, tuple):
            items = value.split(",") if isinstance(value, str) else value
            return tuple(typing.get_args(kind)[0](i) for i in items)
        if isinstance(default, int):
            number = float(value)
            if number != int(number):
                raise ValueError
            return int(number)
        return type(default)(value)
    except (TypeError, ValueError, KeyError, OverflowError):
        kind = "whole number" if isinstance(default, int) else type(default).__name__
        raise UserError(f"setting '{name}' takes a {kind}, not '{value}'") from None


def override(config: Any, flat: dict[str, Any]) -> Any:
    """The settings with some of them replaced, whichever level they live at."""
    known = flatten(config)
    for name in flat:
        if name not in known:
            raise nearest(name, known, "setting")
    hints = typing.get_type_hints(type(config))
    changes = {}
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if dataclasses.is_dataclass(value):
            inner = flatten(value)
            changes[f.name] = override(value, {k: v for k, v in flat.items() if k in inner})
        elif f.name in flat:
            changes[f.name] = _coerce(f.name, flat[f.name], value, hints[f.name])
    return dataclasses.replace(config, **changes)


def presets(algorithm: str) -> dict[str, dict[str, Any]]:
    """An algorithm's presets; one that was registered elsewhere has its defaults."""
    return PRESETS.get(algorithm, {"default": {}})


def suited(algorithm: str, task: str) -> str:
    """The preset that a task is trained with unless one is named."""
    for start, names in SUITED.items():
        if task.removeprefix("uvd/").startswith(start) and algorithm in names:
            return names[algorithm]
    return "default"


def build(algorithm: str, preset: str, flat: dict[str, Any]) -> Any:
    """An algorithm's settings: a preset with some of them replaced."""
    base = get_algorithm(algorithm).config()
    if preset not in presets(algorithm):
        raise nearest(preset, presets(algorithm), f"preset of {algorithm}")
    return override(override(base, presets(algorithm)[preset]), flat)


def shared(config: Any) -> TD3Config:
    """What the loop reads of an algorithm's settings, as TD3 has them.

    An algorithm that does not explore, or learns once a cycle, need not have all of them.
    """
    if isinstance(td3 := getattr(config, "td3", config), TD3Config):
        return td3
    flat = flatten(config)
    names = {f.name for f in dataclasses.fields(TD3Config)}
    calm = TD3Config(noise=0.0, random=0.0, hold=1, warmup=0)
    return dataclasses.replace(calm, **{k: v for k, v in flat.items() if k in names})


def _require(ok: bool, message: str) -> None:
    if not ok:
        raise UserError(message)


def check(config: Any, run: RunSettings, horizon: int) -> None:
    """Refuses settings that cannot work, by name, before anything is written."""
    s = flatten(config)
    gamma = s.get("gamma", 0.5)
    _require(0 < gamma < 1, f"gamma = {gamma} must lie between 0 and 1 (exclusive)")
    for name in ("seeds", "steps", "envs", "eval_episodes"):
        _require(getattr(run, name) >= 1, f"{name} = {getattr(run, name)} must be at least 1")
    cuts = "episode_steps", "late_episode_steps"
    for name in ("eval_every", "first_seed", "save_seconds", "workers", "late_steps", *cuts):
        _require(getattr(run, name) >= 0, f"{name} = {getattr(run, name)} must not be negative")
    for name in cuts:
        cut = getattr(run, name)
        _require(cut <= horizon, f"{name} = {cut} is more than an episode's {horizon} steps")
    seconds = run.episode_seconds
    _require(seconds > 0, f"episode_seconds = {seconds} must be above 0")
    positive = (
        "batch", "policy_delay", "hold", "capacity", "horizon", "short", "epochs",
        "discriminator_steps", "weight_bound",
    )  # fmt: skip
    for name in positive:
        _require(s.get(name, 1) >= 1, f"{name} = {s.get(name)} must be at least 1")
    above_zero = (
        "actor_lr", "critic_lr", "flow_lr", "density_scale", "updates_per_step", "start_std",
        "ratio_clip", "max_grad", "discriminator_lr", "reward_bound",
    )  # fmt: skip
    for name in above_zero:
        _require(s.get(name, 1) > 0, f"{name} = {s.get(name)} must be above 0")
    not_negative = (
        "target_noise", "action_penalty", "leaning_penalty", "range_noise", "noise", "warmup",
        "actor_start", "actor_scale", "smoothing", "smoothing_half", "smoothing_end",
        "smoothing_long", "bijectors", "flow_decay", "flow_delay", "k", "l2", "early_delay",
        "early_updates", "density_only", "late_noise", "late_updates", "gradient_penalty",
        "entropy", "lr_half",
    )  # fmt: skip
    for name in not_negative:
        _require(s.get(name, 0) >= 0, f"{name} = {s.get(name)} must not be negative")
    shares = (
        "tau", "critic_tau", "random", "intended", "intended_early", "futures", "gae",
        "temporal_smoothing",
    )  # fmt: skip
    for name in shares:
        _require(0 <= s.get(name, 0) <= 1, f"{name} = {s.get(name)} must lie in [0, 1]")
    for name in ("hidden", "actor_hidden", "flow_hidden", "discriminator_hidden"):
        _require(all(n >= 1 for n in s.get(name, ())), f"{name} = {s.get(name)}: layers need width")
    for name, choices in _CHOICES.items():
        if name in s and s[name] not in choices:
            raise nearest(str(s[name]), choices, name)
    head = s.get("critic_head", "linear")
    if head == "sigmoid":
        _require("combine" in s, "critic_head = sigmoid is for values above 0: for uvd and vdi")
    if head in ("sigmoid", "tanh"):
        low = 1e-6 if head == "sigmoid" else -1 + 1e-6
        _require(
            low <= s["critic_start"] <= 1 - 1e-6,
            f"critic_start = {s['critic_start']} must lie inside the range of a {head}",
        )
    for name, value in s.items():
        ok = not isinstance(value, float) or math.isfinite(value)
        _require(ok, f"{name} = {value} must be finite")
    _require(run.first_seed + run.seeds < 2**31, f"first_seed = {run.first_seed} is too large")
    capacity = shared(config).capacity
    _require(
        capacity >= horizon * run.envs,
        f"capacity = {capacity} holds no {run.envs} episodes of {horizon} steps",
    )
    if "combine" in s:
        _check_densities(s, horizon)
    if "updates_per_step" in s:
        updates = run.envs * horizon * s["updates_per_step"]
        _require(
            abs(updates - round(updates)) < 1e-6 and updates >= 1,
            f"updates_per_step = {s['updates_per_step']} gives {updates:g} updates for {run.envs} "
            f"episodes of {horizon} steps; it must be a whole number of at least 1",
        )


def _check_densities(s: dict[str, Any], horizon: int) -> None:
    """What the densities of uvd and vdi ask of each other and of the task."""
    _require(
        not s["temporal_smoothing"] or s["combine"].startswith("max"),
        f"temporal_smoothing has no meaning for combine = {s['combine']}, only for a max",
    )
    _require(s["smoothing"] > 0 or s["bijectors"] > 0, "without smoothing, bijectors must be given")
    _require(s["bijectors"] <= 40, f"bijectors = {s['bijectors']}: more than 40 overflow")
    _require(
        s["short"] <= s["capacity"],
        f"short = {s['short']} is larger than the long memory (capacity = {s['capacity']})",
    )
    _require(
        s["horizon"] <= horizon,
        f"horizon = {s['horizon']} is longer than the task's episodes of {horizon} steps",
    )
    _require(
        s["horizon"] <= s["short"], f"horizon = {s['horizon']} is longer than short = {s['short']}"
    )
    _require(
        s["combine"] != "sum" or s["horizon"] == 1,
        f"combine = sum adds the density of one step, not of horizon = {s['horizon']}: take "
        "horizon = 1, or a max",
    )
    if "td_goals" in s:
        _require(
            max(s["smoothing"], s["smoothing_long"]) > 0
            or "balanced" not in (s["td_goals"], s["actor_goals"]),
            "balanced goals need smoothing or smoothing_long above 0: they compare densities",
        )
        _require(s["futures"] < 1, f"futures = {s['futures']} must be below 1")
    else:
        _require(s["combine"] != "reward", "combine = reward is for goals, so for uvd only")
        _require(s["bijectors"] >= 1, "bijectors = 0 must be at least 1")
        _require(
            s["density"] == "flow" or (s["pool"] > 0 and s["smoothing"] > 0),
            "density = kernel needs a pool and a smoothing above 0: its values count in units of d",
        )
        _require(s["pool"] >= 0, f"pool = {s['pool']} must not be negative")
        _require(
            not s["pool"] or s["combine"] == "sum",
            f"pool = {s['pool']}: values of several states add up for combine = sum only",
        )
        _require(
            not s["pool"] or s["critic_head"] in ("linear", "huber"),
            f"critic_head = {s['critic_head']}: a pool has no bound, take linear or huber",
        )
        kernel = s["density"] == "kernel"
        _require(not (kernel and s["average"]), "density = kernel has no logits: average = false")
        _require(
            kernel or s["compare"] == "states",
            f"compare = {s['compare']} is for density = kernel: a flow is of states",
        )
        _require(
            kernel or not s["keep"],
            "keep is for density = kernel: its width is what policies are judged by",
        )
        _require(s["trials"] >= 0, f"trials = {s['trials']} must not be negative")
        _require(s["keep"] or not s["trials"], "trials decide who is kept: give keep = true")
        _require(
            (s["smoothing_half"] > 0) == (s["smoothing_end"] > 0),
            "smoothing_half and smoothing_end have a meaning only together",
        )
        _require(
            s["smoothing_end"] <= s["smoothing"],
            f"smoothing_end = {s['smoothing_end']} is above smoothing = {s['smoothing']}",
        )
        _require(s["flow_delay"] >= 1, "flow_delay = 0 must be at least 1: weights follow copies")
        _require(
            (s["early_delay"] > 0) == (s["early_updates"] > 0),
            "early_delay and early_updates have a meaning only together",
        )
        _require(
            s["actor_start"] >= s["density_only"],
            f"actor_start = {s['actor_start']}: the actor cannot start before the critic, which "
            f"waits for density_only = {s['density_only']} updates",
        )
