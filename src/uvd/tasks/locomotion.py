"""HalfCheetah and Humanoid without their velocity: tasks for imitation that cannot be exploited.

Where an observation holds the root's velocity, an imitator can match that number and nothing else.
Here it is left out (paper, section 6.2): `HalfCheetahNonExploitable-v0` is Gymnasium's
HalfCheetah-v5 without the root's x velocity, 16 numbers; `HumanoidNonExploitable-v0` is
Humanoid-v5's joint positions and velocities without the root's position and velocity in x and y, 43
numbers. Bodies, starts, random streams and rewards are Gymnasium's to the last bit.
docs/locomotion.md says what the other numbers reveal of the velocity.

Experts are trained on `...Privileged-v0`, which append the hidden numbers and count them in
`privileged_dim`: critics read them, policies do not. No JAX here: worker processes import this.
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

    privileged_dim = 0

    def __init__(self, privileged: bool = False, **settings: Any) -> None:
        super().__init__(exclude_current_positions_from_observation=True, **_tracked(settings))
        EzPickle.__init__(self, privileged, **settings)
        _hide(self, CHEETAH_HIDDEN, privileged)

    def _get_obs(self) -> NDArray[np.float64]:
        return _hidden_last(super()._get_obs(), CHEETAH_HIDDEN, self.privileged_dim)


class Humanoid(HumanoidEnv):
    """Humanoid-v5's joints without the root's x and y; other settings are upstream's.

    Contacts, inertia, body velocities and forces are left out too: they would reveal the velocity
    or the action. A fall ends nothing, it only costs the bonus of 5 for as long as it lasts;
    `terminate=True`, which makes an expert quicker to train, ends the episode as upstream does, and
    `privileged=True` appends the root's velocity to the observation.
    """

    privileged_dim = 0

    def __init__(self, terminate: bool = False, privileged: bool = False, **settings: Any) -> None:
        super().__init__(
            terminate_when_unhealthy=terminate,
            exclude_current_positions_from_observation=True,
            include_cinert_in_observation=False,
            include_cvel_in_observation=False,
            include_qfrc_actuator_in_observation=False,
            include_cfrc_ext_in_observation=False,
            **_tracked(settings),
        )
        EzPickle.__init__(self, terminate, privileged, **settings)
        _hide(self, HUMANOID_HIDDEN, privileged)

    def _get_obs(self) -> NDArray[np.float64]:
        return _hidden_last(super()._get_obs(), HUMANOID_HIDDEN, self.privileged_dim)


def _tracked(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings with the camera that follows the body, unless they name another."""
    chosen = settings.keys() & {"camera_id", "camera_name"}
    return settings if chosen else {**settings, "camera_name": "track"}


def _hide(env: Any, hidden: tuple[int, ...], privileged: bool) -> None:
    """Adapts upstream's description of its observations; hidden entries count if privileged."""
    env.privileged_dim = len(hidden) if privileged else 0
    size = env.observation_space.shape[0] - len(hidden) + env.privileged_dim
    env.observation_space = Box(-np.inf, np.inf, (size,), np.float64)
    env.observation_structure["qvel"] += env.privileged_dim - len(hidden)


def _hidden_last(obs: NDArray[np.float64], hidden: Any, privileged: int) -> NDArray[np.float64]:
    """The observation without its hidden entries; if they are privileged they follow at the end."""
    visible = np.delete(obs, hidden)
    return np.concatenate([visible, obs[list(hidden)]]) if privileged else visible


_IDS: dict[str, tuple[str, dict[str, Any]]] = {
    "HalfCheetahNonExploitable-v0": ("HalfCheetah", {}),
    "HumanoidNonExploitable-v0": ("Humanoid", {}),
    "HumanoidNonExploitableTerminating-v0": ("Humanoid", {"terminate": True}),
    "HalfCheetahNonExploitablePrivileged-v0": ("HalfCheetah", {"privileged": True}),
    "HumanoidNonExploitablePrivileged-v0": ("Humanoid", {"terminate": True, "privileged": True}),
}
ABOUT = {
    "HalfCheetahNonExploitable-v0": "HalfCheetah without its speed; rewards, no goals",
    "HumanoidNonExploitable-v0": "Humanoid without its speed, a fall ends nothing; rewards",
    "HumanoidNonExploitableTerminating-v0": "the same, a fall ends the episode; rewards",
    "HalfCheetahNonExploitablePrivileged-v0": "for experts: the critics read the speed",
    "HumanoidNonExploitablePrivileged-v0": "the same, a fall ends the episode",
}
for _name, (_env, _settings) in _IDS.items():
    _entry = f"uvd.tasks.locomotion:{_env}"
    gym.register(_name, _entry, max_episode_steps=HORIZON, kwargs=_settings)
