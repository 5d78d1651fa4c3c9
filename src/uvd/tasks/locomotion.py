"""HalfCheetah and Humanoid without their speed: tasks for imitation that cannot be exploited.

Where an observation holds the root's velocity, an imitator can match that one number and nothing
else. Here it is gone (paper, section 6.2): `HalfCheetahNonExploitable-v0` is Gymnasium's
HalfCheetah-v5 without the root's x velocity, 16 numbers; `HumanoidNonExploitable-v0` is
Humanoid-v5's joint positions and velocities without the root's place and velocity in x and y, 43
numbers. Bodies, starts, random streams and rewards are Gymnasium's to the last bit.
docs/locomotion.md tells what still leaks.

Experts are trained on `...Told-v0`, which show the hidden numbers after the others and say so
(`told`): the critics read them, the policy does not. No JAX here: worker processes import this.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv
from gymnasium.envs.mujoco.humanoid_v5 import HumanoidEnv
from gymnasium.spaces import Box
from gymnasium.utils import EzPickle
from numpy.typing import NDArray

HORIZON = 1000
CHEETAH_HIDDEN = (8,)  # of HalfCheetah-v5's 17 numbers: the root's x velocity
HUMANOID_HIDDEN = (22, 23)  # of the 45 that are left of Humanoid-v5: the root's x and y velocity


class HalfCheetah(HalfCheetahEnv):
    """HalfCheetah-v5 without the root's x velocity, or with it at the end; else as upstream."""

    told = 0

    def __init__(self, tell: bool = False, **settings: Any) -> None:
        super().__init__(exclude_current_positions_from_observation=True, **_followed(settings))
        EzPickle.__init__(self, tell, **settings)
        _hide(self, CHEETAH_HIDDEN, tell)

    def _get_obs(self) -> NDArray[np.float64]:
        return _hidden_last(super()._get_obs(), CHEETAH_HIDDEN, self.told)


class Humanoid(HumanoidEnv):
    """Humanoid-v5's joints without the root's x and y; other settings are upstream's.

    Contacts, inertia, body velocities and forces are left out too: they would tell the speed or
    the action. A fall ends nothing, it only costs the bonus of 5 for as long as it lasts;
    `terminate=True`, which makes an expert quicker to train, ends the episode as upstream does, and
    `tell=True` shows the root's velocity after all else.
    """

    told = 0

    def __init__(self, terminate: bool = False, tell: bool = False, **settings: Any) -> None:
        super().__init__(
            terminate_when_unhealthy=terminate,
            exclude_current_positions_from_observation=True,
            include_cinert_in_observation=False,
            include_cvel_in_observation=False,
            include_qfrc_actuator_in_observation=False,
            include_cfrc_ext_in_observation=False,
            **_followed(settings),
        )
        EzPickle.__init__(self, terminate, tell, **settings)
        _hide(self, HUMANOID_HIDDEN, tell)

    def _get_obs(self) -> NDArray[np.float64]:
        return _hidden_last(super()._get_obs(), HUMANOID_HIDDEN, self.told)


def _followed(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings with the camera that runs along, unless another is asked for."""
    chosen = settings.keys() & {"camera_id", "camera_name"}
    return settings if chosen else {**settings, "camera_name": "track"}


def _hide(env: Any, hidden: tuple[int, ...], tell: bool) -> None:
    """What upstream says of its observations, without the hidden entries unless they are told."""
    env.told = len(hidden) if tell else 0
    size = env.observation_space.shape[0] - len(hidden) + env.told
    env.observation_space = Box(-np.inf, np.inf, (size,), np.float64)
    env.observation_structure["qvel"] += env.told - len(hidden)


def _hidden_last(
    obs: NDArray[np.float64], hidden: tuple[int, ...], told: int
) -> NDArray[np.float64]:
    """The observation without its hidden entries, which follow at the end if they are told."""
    own = np.delete(obs, hidden)
    return np.concatenate([own, obs[list(hidden)]]) if told else own


_IDS: dict[str, tuple[str, dict[str, Any]]] = {
    "HalfCheetahNonExploitable-v0": ("HalfCheetah", {}),
    "HumanoidNonExploitable-v0": ("Humanoid", {}),
    "HumanoidNonExploitableTerminating-v0": ("Humanoid", {"terminate": True}),
    "HalfCheetahNonExploitableTold-v0": ("HalfCheetah", {"tell": True}),
    "HumanoidNonExploitableTold-v0": ("Humanoid", {"terminate": True, "tell": True}),
}
ABOUT = {
    "HalfCheetahNonExploitable-v0": "HalfCheetah without its speed; rewards, no goals",
    "HumanoidNonExploitable-v0": "Humanoid without its speed, a fall ends nothing; rewards",
    "HumanoidNonExploitableTerminating-v0": "the same, a fall ends the episode; rewards",
    "HalfCheetahNonExploitableTold-v0": "for experts: the critics are told the speed",
    "HumanoidNonExploitableTold-v0": "the same, a fall ends the episode",
}
for _name, (_env, _settings) in _IDS.items():
    gym.register(
        _name,
        entry_point=f"uvd.tasks.locomotion:{_env}",
        max_episode_steps=HORIZON,
        kwargs=_settings,
    )
