"""How experience is collected: the settings, and exploration as worker processes apply it.

`device.explore` is the JAX half of `explore`. No JAX here.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from uvd.core.config import Count, NotNegative, Positive, Share, Size, validate


class Exploration(NamedTuple):
    """How actions depart from the policy's."""

    noise: Any = 0.0  # standard deviation of Gaussian noise on the action
    random: float = 0.0  # share of steps whose action is drawn at random
    hold: int = 1  # mean number of steps for which a random action is held
    store_unclipped: bool = False  # noisy actions are stored as drawn, beyond the bounds too


RANDOM_ACTIONS = Exploration(random=1.0)  # uniformly random actions


@dataclass(frozen=True)
class CollectConfig:
    """How experience is collected and kept, and how many updates follow it."""

    updates_per_step: Positive = 0.5
    """Updates for each environment step."""
    noise: NotNegative = 0.2
    """Standard deviation of the exploration noise."""
    late_noise: NotNegative = 0.1
    """The same after `late_updates` updates."""
    late_updates: Size = 0
    """Updates after which `late_noise` holds (0: never)."""
    random: Share = 0.3
    """Share of random actions while exploring."""
    hold: Count = 3
    """Mean number of steps for which a random action is held."""
    warmup: Size = 1000
    """Transitions collected without learning, rounded up to whole cycles."""
    warmup_random: bool = False
    """Random actions during the warm-up instead of the exploring policy."""
    capacity: Size = 500_000
    """Transitions in the replay buffer (0: those of the newest cycle)."""
    store_unclipped: bool = False
    """Store noisy actions as they were drawn, beyond the action bounds too, which the task clips:
    critics then see that nothing is gained there."""
    probe_noise: NotNegative = 0.0
    """Feature ranges are measured on roll-outs with Gaussian actions of this standard deviation
    (0: with uniformly random actions)."""

    def __post_init__(self) -> None:
        validate(self)

    @property
    def exploration(self) -> Exploration:
        """While learning, before `late_updates`."""
        return Exploration(self.noise, self.random, self.hold, self.store_unclipped)

    @property
    def probe_exploration(self) -> Exploration:
        """For the roll-outs without a policy that feature ranges are measured on."""
        return Exploration(self.probe_noise) if self.probe_noise else RANDOM_ACTIONS


def explore(
    how: Exploration, rng: np.random.Generator, action: np.ndarray, last: np.ndarray, random: bool
) -> tuple[np.ndarray, bool]:
    """The action to take, and whether it is a random one (`last`, `random`: the step before's).

    Random stretches last `hold` steps on average and fill a share `random` of the time; within one
    the action is held. The rules are those of `device.explore`.
    """
    if random and rng.random() < 1 - 1 / how.hold:
        return last, True
    if rng.random() < how.random / (how.random + how.hold * (1 - how.random)):
        return rng.uniform(-1, 1, action.shape).astype(np.float32), True
    if how.noise:
        noise = np.float32(how.noise) * rng.standard_normal(action.shape, np.float32)
        action = action + noise
        action = action if how.store_unclipped else np.minimum(np.maximum(action, -1), 1)
    return action, False
