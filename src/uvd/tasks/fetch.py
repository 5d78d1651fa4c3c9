"""The Fetch robot's push and slide: gymnasium-robotics' tasks bit for bit, at twice their speed.

Importing this registers ``uvd/FetchPush-v4``, ``uvd/FetchSlide-v4`` and the paper's variants of
them (Figure 2). Models, starts, goals, rewards and the random stream are those of
gymnasium-robotics' version 4; with ``redraw=False`` every observation is the same to the last bit.

It is fast because it simulates a light copy of the model, in which hardly anything but the hand and
the object can collide. A step of the light model is exact if none of the contacts that it leaves
out can occur. `_Clearance` checks this from the positions at every substep; where the check fails,
the step is repeated with the full model. docs/fetch.md explains why that is safe.
No JAX here: worker processes import this.
"""

import itertools
import math
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import mujoco
import numpy as np
from gymnasium.spaces import Box, Dict
from numpy.typing import NDArray

from uvd.core.config import require, require_known
from uvd.core.errors import UserError, refused
from uvd.tasks.noise import find_noise

Array = NDArray[np.float64]
Observation = dict[str, Array]

# MuJoCo's first tested version and the first untested one. Before 3.3.6 an observation changed the
# next step.
SUPPORTED = ("3.3.6", "3.12.0")
SUBSTEPS = 20
HORIZON = 50


class Setup(NamedTuple):
    """The differences between push and slide; lengths in metres."""

    model: str
    base_x: float  # of the robot
    object: tuple[float, float, float]  # from where it falls on the table
    extra_height: float  # of the gripper at the start
    object_range: float  # of the object's start, in x and y
    goal_range: float
    goal_ahead: float  # of the goals' centre, in x


SETUPS = {
    "push": Setup("push.xml", 0.405, (1.25, 0.53, 0.4), 0.0, 0.15, 0.15, 0.0),
    "slide": Setup("slide.xml", 0.05, (1.7, 1.1, 0.41), -0.02, 0.1, 0.3, 0.4),
}

_LINK = "robot0:{}_link".format
_SHOULDER = ("shoulder_pan", "shoulder_lift")
_ARM = (*_SHOULDER, "upperarm_roll", "elbow_flex", "forearm_roll", "wrist_flex", "wrist_roll")
_HAND = ("gripper", "r_gripper_finger", "l_gripper_finger")
_TRUNK = ("torso_lift", "torso_fixed", "head_pan", "head_tilt")
_FOOT = ("base", "laser", "estop")

_TURN = np.array([1.0, 0.0, 1.0, 0.0])  # upstream adds it to the hand's rotation at every step
_TINY = 4 * float(np.finfo(np.float64).eps)
_FULL_STATE = ("FULLPHYSICS", "WARMSTART", "CTRL", "MOCAP_POS", "MOCAP_QUAT")  # no bit in two
_STATE = sum(getattr(mujoco.mjtState, f"mjSTATE_{name}").value for name in _FULL_STATE)


def _check_mujoco() -> None:
    """Refuses a MuJoCo whose observations differ from upstream's or were never compared."""
    (low, high), version = SUPPORTED, mujoco.__version__
    first, here, end = ([int(n) for n in re.findall(r"\d+", v)[:3]] for v in (low, version, high))
    require(
        first <= here < end,
        f"the Fetch tasks need another MuJoCo than {version}: pip install 'mujoco>={low},<{high}'",
    )


def _model_path(name: str) -> str:
    spec = find_spec("gymnasium_robotics")
    if spec is None or spec.origin is None:
        raise UserError("the Fetch models are missing: pip install gymnasium-robotics")
    return str(Path(spec.origin).parent / "envs/assets/fetch" / name)


def _light(path: str) -> mujoco.MjModel:
    """The model without rare collisions and without the cameras' massless bodies.

    Hand and base still collide with table, floor and object; shoulder, wrist and hand with each
    other.
    """
    spec = mujoco.MjSpec.from_file(path)

    def delete(thing: Any) -> None:
        thing.delete() if hasattr(thing, "delete") else spec.delete(thing)  # by MuJoCo's version

    # Two geoms collide if contype of one is in conaffinity of the other. All others have 1 and 1.
    solid = {_LINK("base"): (0, 1)} | {_LINK(link): (0, 3) for link in _HAND}
    solid |= {_LINK("wrist_roll"): (0, 2)} | {_LINK(link): (2, 0) for link in _SHOULDER}
    for geom in list(spec.geoms):
        if geom.name in solid:
            geom.contype, geom.conaffinity = solid[geom.name]
        elif geom.name.startswith("robot0:") or geom.parent.name == "robot0:mocap":
            delete(geom)
    for camera in list(spec.cameras):
        delete(camera)
    for root in ("head_camera_link", "gripper_camera_link", "external_camera_body_0"):
        delete(spec.body(f"robot0:{root}"))
    return spec.compile()


def _corners(model: mujoco.MjModel, geom: int) -> Array:
    """Points whose convex hull contains the geom, in its own frame."""
    if model.geom_type[geom] == mujoco.mjtGeom.mjGEOM_MESH:
        mesh = model.geom_dataid[geom]
        begin = model.mesh_vertadr[mesh]
        points: Array = model.mesh_vert[begin : begin + model.mesh_vertnum[mesh]].astype(np.float64)
        return points
    x, y, z = model.geom_size[geom]
    if model.geom_type[geom] == mujoco.mjtGeom.mjGEOM_CYLINDER:
        x, y, z = x, x, y
    return np.array(list(itertools.product((-x, x), (-y, y), (-z, z))))


class _Clearance:
    """Decides from the positions of a step whether the light model missed no contact in it.

    A row holds the positions of the joints, up to the object's, and of the bodies of the arm and
    the hand at one substep. Each link lies within a sphere around its body. Bounds on the numbers
    of a row keep links apart that could touch.
    """

    # Within these the arm down to the elbow cannot touch the trunk, nor the arm itself.
    JOINTS = {  # noqa: RUF012
        "torso_lift": (-0.005, 0.02),
        "head_pan": (-0.02, 0.02),
        "head_tilt": (0.04, 0.08),
        "shoulder_pan": (-1.1, 0.8),
        "shoulder_lift": (-1.1, 0.6),
        "upperarm_roll": (-1.2, 1.2),
        "elbow_flex": (-0.6, 2.35),
        "forearm_roll": (-1.5, 1.5),
        "wrist_flex": (-0.8, 2.1),
        "r_gripper_finger": (-0.02, 0.06),
        "l_gripper_finger": (-0.02, 0.06),
    }
    RAISED, AHEAD = -0.95, 0.4  # if the lift is below the first, |pan| must be below the second
    PLANE = 0.49  # the arm stays above this height and the object below; the table's top is at 0.4
    MARGIN = 0.01  # contacts begin at 0.001; the rest allows for movements of head and torso
    WRIST = 0.15  # radius at the wrist of the cone around the gripper, which is wider than the hand

    def __init__(self, full: mujoco.MjModel, data: mujoco.MjData) -> None:
        links = (*_ARM, *_HAND)
        joints = int(full.joint("object0:joint").qposadr[0]) + 3
        self.low = np.full(joints + 3 * len(links), -np.inf)
        self.high = np.full_like(self.low, np.inf)

        def hull(link: str) -> Array:
            """Points around a link, in its body's frame."""
            geom, turn = full.geom(_LINK(link)), np.empty(9)
            mujoco.mju_quat2Mat(turn, geom.quat)
            return _corners(full, geom.id) @ turn.reshape(3, 3).T + geom.pos

        def extent(links: tuple[str, ...], axis: int) -> float:
            """The largest coordinate of links that hardly move, along an axis."""
            bodies = [(link, data.body(_LINK(link))) for link in links]
            ends = [hull(link) @ b.xmat.reshape(3, 3)[axis] + b.xpos[axis] for link, b in bodies]
            return float(np.concatenate(ends).max())

        self.low[:3], self.high[:3] = data.qpos[:3] - 1e-3, data.qpos[:3] + 1e-3
        for name, (low, high) in self.JOINTS.items():
            at = full.joint(f"robot0:{name}_joint").qposadr[0]
            self.low[at], self.high[at] = low, high
        self.pan, self.lift = (full.joint(f"robot0:{s}_joint").qposadr[0] for s in _SHOULDER)

        front, top = extent(_TRUNK, 0), extent(_FOOT, 2)
        radius = np.array([np.linalg.norm(hull(link), axis=1).max() for link in links])
        bodies = self.low[joints:].reshape(-1, 3)  # a view
        arm, lower = slice(len(_ARM)), slice(links.index("forearm_roll"), None)
        bodies[arm, 2] = self.PLANE + radius[arm] + self.MARGIN
        # The gripper lies within a cone between its body and the wrist's; its radii:
        x, y, z = hull("gripper").T
        along = 1 + x / full.body(_LINK("gripper")).pos[0]
        aside = np.hypot(y, z)
        radius[links.index("gripper")] = ((aside - (1 - along) * self.WRIST) / along).max()
        radius[links.index("wrist_roll")] = self.WRIST
        bodies[lower, 0] = front + radius[lower] + self.MARGIN
        bodies[lower, 2] = np.maximum(bodies[lower, 2], top + radius[lower] + self.MARGIN)
        thing = float(np.linalg.norm(_corners(full, full.geom("object0").id), axis=1).max())
        self.low[joints - 3] = max(front, extent(_FOOT, 0)) + thing + self.MARGIN
        self.high[joints - 1] = self.PLANE - thing - self.MARGIN

    def holds(self, rows: Array) -> bool:
        """Whether the light model misses nothing at these substeps."""
        if not ((rows > self.low) & (rows < self.high)).all():
            return False
        raised = rows[:, self.lift].min() < self.RAISED
        return not raised or bool(np.abs(rows[:, self.pan]).max() < self.AHEAD)


class FetchEnv(gym.Env[dict[str, Any], Any]):
    """Push or slide an object to a goal with the Fetch robot, as a Gymnasium goal environment."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 25}  # noqa: RUF012

    def __init__(
        self,
        task: str = "push",
        distance_threshold: float = 0.05,
        noise: str = "none",
        redraw: bool = False,
        reward_type: str = "sparse",
        render_mode: str | None = None,
    ) -> None:
        """`redraw`: draw start and goal again if the start is a success; upstream does not."""
        _check_mujoco()
        require_known(task, SETUPS, "task")
        require_known(reward_type, ("sparse", "dense"), "reward_type")
        self.setup, self.sigma, self.redraw = SETUPS[task], find_noise(noise), redraw
        self.distance_threshold, self.reward_type = distance_threshold, reward_type
        self.render_mode = render_mode
        self._renderer: Any = None
        self._load()
        box = Box(-np.inf, np.inf, (3,), np.float64)
        self.observation_space = Dict(
            desired_goal=box, achieved_goal=box, observation=Box(-np.inf, np.inf, (25,), np.float64)
        )
        self.action_space = space = Box(-1.0, 1.0, (4,), np.float32)
        self._least, self._most = space.low, space.high
        self.goal = np.zeros(3)

    def _load(self) -> None:
        """Both models, the start, and views of what every step reads and writes."""
        path = _model_path(self.setup.model)
        self._full, self._model = mujoco.MjModel.from_xml_path(path), _light(path)
        self._full_data, self._data = mujoco.MjData(self._full), mujoco.MjData(self._model)
        for model in (self._full, self._model):
            model.eq_data[:, :7] = (0, 0, 0, 0, 0, 0, 1)  # the weld that pulls the hand

        # The gripper moves into position once; episodes start from there.
        full, data = self._full, self._full_data
        self._object = full.joint("object0:joint").qposadr[0]
        data.qpos[:3] = (self.setup.base_x, 0.48, 0.0)
        data.qpos[self._object :] = (*self.setup.object, 1.0, 0.0, 0.0, 0.0)
        mujoco.mj_forward(full, data)
        grip = data.site("robot0:grip")
        ahead = np.array([-0.498, 0.005, -0.431 + self.setup.extra_height])
        data.mocap_pos[0] = grip.xpos + ahead
        data.mocap_quat[0] = _TURN
        mujoco.mj_step(full, data, nstep=10 * SUBSTEPS)
        self._start_time, self._start = data.time, (data.qpos.copy(), data.qvel.copy())
        self._start_grip = grip.xpos.copy()
        self._height = float(data.site("object0").xpos[2])
        self._clearance = _Clearance(full, data)
        self._clear = True  # whether the clearance held at the end of the last step

        data, model = self._data, self._model
        self._qpos, self._qvel = data.qpos, data.qvel
        self._state = np.empty(mujoco.mj_stateSize(model, _STATE))
        joints, first = self._object + 3, model.body(_LINK(_ARM[0])).id
        arm = data.xpos[first : first + len(_ARM) + len(_HAND)]
        self._row = self._qpos[:joints], arm.reshape(-1)
        self._rows = np.empty((SUBSTEPS, joints + arm.size))
        self._row_views = [(row[:joints], row[joints:]) for row in self._rows]
        self._fingers = self._qpos[13:15], self._qvel[13:15]
        self._mocap = data.mocap_pos[0], data.mocap_quat[0]
        hand = data.body(_LINK("gripper"))
        self._hand = hand.xpos, hand.xquat
        sites = data.site("robot0:grip"), data.site("object0")
        self._site_ids = [site.id for site in sites]
        self._site_places, self._turn = [site.xpos for site in sites], sites[1].xmat
        self._jac = [np.zeros((3, model.nv)) for _ in range(3)]
        self._dt = SUBSTEPS * model.opt.timestep

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Draws the object's place near the gripper, and a goal."""
        super().reset(seed=seed)
        while True:
            self._place()
            self.goal = self._draw_goal()
            obs = self._observe()
            distance = _distance(obs["achieved_goal"], self.goal)
            if not self.redraw or distance >= self.distance_threshold:
                return obs, {}

    def _place(self) -> None:
        mujoco.mj_resetData(self._model, self._data)
        self._data.time = self._start_time
        self._qpos[:], self._qvel[:] = self._start
        centre, reach = self._start_grip[:2], self.setup.object_range
        place = centre
        while np.linalg.norm(place - centre) < 0.1:
            place = centre + self.np_random.uniform(-reach, reach, size=2)
        self._qpos[self._object : self._object + 2] = place
        self._settle()
        self._clear = True

    def _draw_goal(self) -> Array:
        reach = self.setup.goal_range
        goal = self._start_grip + self.np_random.uniform(-reach, reach, size=3)
        goal[0] += self.setup.goal_ahead
        goal[2] = self._height
        return goal

    def step(self, action: Any) -> tuple[Observation, np.float32, bool, bool, dict[str, Any]]:
        """Moves the gripper in the action's direction, and simulates 0.04 seconds."""
        action = np.minimum(np.maximum(action, self._least), self._most)
        if action.shape != (4,):
            raise ValueError(f"an action has the shape (4,), not {action.shape}")
        if self.sigma is not None:
            noise = self.sigma(action) * self.np_random.standard_normal(4)
            action = np.clip(action + noise, -1.0, 1.0)
        np.add(self._hand[0], action[:3] * 0.05, out=self._mocap[0])
        np.add(self._hand[1], _TURN, out=self._mocap[1])
        self._simulate()
        self._fingers[0][:] = 0.0  # the gripper is blocked
        self._settle()

        obs = self._observe()
        distance = _distance(obs["achieved_goal"], self.goal)
        info = {"is_success": (distance < self.distance_threshold).astype(np.float32)}
        return obs, self._reward(distance), False, False, info

    def _simulate(self) -> None:
        """All substeps with the light model, and again with the full one if that may differ."""
        model, data, step = self._model, self._data, mujoco.mj_step
        mujoco.mj_getState(model, data, self._state, _STATE)
        if self._clear:
            joints, bodies = self._row
            for joints_row, bodies_row in self._row_views:
                step(model, data)
                joints_row[:], bodies_row[:] = joints, bodies
            self._clear = self._clearance.holds(self._rows)
        if not self._clear:
            full, full_data = self._full, self._full_data
            mujoco.mj_setState(full, full_data, self._state, _STATE)
            step(full, full_data, nstep=SUBSTEPS)
            mujoco.mj_getState(full, full_data, self._state, _STATE)
            mujoco.mj_setState(model, data, self._state, _STATE)
            mujoco.mj_kinematics(model, data)
            self._clear = self._clearance.holds(np.concatenate(self._row)[None])

    def _settle(self) -> None:
        """Computes the positions that an observation reads; a step computes the rest itself."""
        mujoco.mj_kinematics(self._model, self._data)
        mujoco.mj_comPos(self._model, self._data)

    def _observe(self) -> Observation:
        model, data, qvel, dt = self._model, self._data, self._qvel, self._dt
        grip_jac, move_jac, turn_jac = self._jac
        mujoco.mj_jacSite(model, data, grip_jac, None, self._site_ids[0])
        mujoco.mj_jacSite(model, data, move_jac, turn_jac, self._site_ids[1])
        grip, place = self._site_places
        fingers, finger_speed = self._fingers
        speed = grip_jac @ qvel * dt
        positions = (grip, place, place - grip, fingers, _euler(self._turn))
        velocities = (move_jac @ qvel * dt - speed, turn_jac @ qvel * dt, speed, finger_speed * dt)
        obs = np.concatenate(positions + velocities)
        return {"observation": obs, "achieved_goal": place.copy(), "desired_goal": self.goal.copy()}

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        """-1 until the goal is achieved and 0 while it is, for one goal or a batch of them."""
        return self._reward(_distance(achieved_goal, desired_goal))

    def _reward(self, distance: Any) -> Any:
        if self.reward_type == "dense":
            return -distance
        return -(distance > self.distance_threshold).astype(np.float32)

    def render(self) -> NDArray[np.uint8] | None:
        """A picture of the full model with the goal as a red ball."""
        if self.render_mode is None:
            return None
        full, data = self._full, self._full_data
        if self._renderer is None:
            hint = "set MUJOCO_GL to egl or osmesa before Python starts, whichever is installed"
            with refused(f"MuJoCo cannot draw ({hint})"):
                self._renderer = mujoco.Renderer(full, 480, 480)
        camera = mujoco.MjvCamera()
        camera.distance, camera.azimuth, camera.elevation = 2.5, 132.0, -14.0
        camera.lookat[:] = (1.3, 0.75, 0.55)
        full.site("target0").pos = self.goal - full.body("floor0").pos
        mujoco.mj_getState(self._model, self._data, self._state, _STATE)
        mujoco.mj_setState(full, data, self._state, _STATE)
        mujoco.mj_forward(full, data)
        self._renderer.update_scene(data, camera)
        picture: NDArray[np.uint8] = self._renderer.render()
        return picture

    def close(self) -> None:
        """Frees the renderer's memory."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None


def _distance(achieved: Any, desired: Any) -> Any:
    gap = achieved - desired
    return np.sqrt(np.add.reduce(gap * gap, -1))


def _euler(turn: Array) -> Array:
    """Euler angles of a rotation matrix, by the same operations as upstream's."""
    xx, xy, xz, yx, yy, yz, _, _, zz = turn.tolist()
    cy = math.sqrt(zz * zz + yz * yz)
    upright = cy > _TINY
    x = -np.arctan2(yz, zz) if upright else 0.0
    z = -np.arctan2(xy, xx) if upright else -np.arctan2(-yx, yy)
    return np.array([x, -np.arctan2(-xz, cy), z])


_IDS: dict[str, dict[str, Any]] = {
    "FetchPush-v4": {"task": "push"},
    "FetchPushSparse-v0": {"task": "push", "distance_threshold": 0.005},
    "FetchSlide-v4": {"task": "slide"},
    "FetchSlideNoise-v0": {"task": "slide", "noise": "paper"},
    "FetchSlideNoiseCode-v0": {"task": "slide", "noise": "code"},
}
ABOUT = {
    "FetchPush-v4": "a robot pushes a box to a goal",
    "FetchSlide-v4": "it strikes a puck that slides to a goal out of its reach",
    "FetchPushSparse-v0": "push, with a goal of a hundredth of the area",
    "FetchSlideNoise-v0": "slide, with noise that grows with the action: the paper's formula",
    "FetchSlideNoiseCode-v0": "the same with the formula of its authors' code",
}
for _name, _settings in _IDS.items():
    _settings = {"redraw": True, **_settings}
    _entry = "uvd.tasks.fetch:FetchEnv"
    gym.register(f"uvd/{_name}", _entry, max_episode_steps=HORIZON, kwargs=_settings)
