"""The Fetch robot's push and slide: gymnasium-robotics' tasks bit for bit, at twice its speed.

Importing this registers ``uvd/FetchPush-v4``, ``uvd/FetchSlide-v4`` and the paper's variants of
them (Figure 2). Models, starts, goals, rewards and the random stream are those of
gymnasium-robotics' version 4; with ``redraw=False`` every observation is the same to the last bit.

What makes it fast is a light copy of the model in which hardly anything but the hand and the
object can collide. A step of the light model is exact as long as nothing that it leaves out could
touch; `_Clearance` says so from the positions at every substep, and where it cannot, the step is
done again with the full model. docs/fetch.md tells why that is safe.
No JAX here: worker processes import this.
"""

import itertools
import math
import re
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import mujoco
import numpy as np
from gymnasium.spaces import Box, Dict
from numpy.typing import NDArray

from uvd.errors import UserError, nearest

Array = NDArray[np.float64]
Observation = dict[str, Array]

# MuJoCo: from, and up to but without. Before 3.3.6 an observation changed the next step.
SUPPORTED = ((3, 3, 6), (3, 12, 0))
SUBSTEPS = 20
HORIZON = 50


class Setup(NamedTuple):
    """What tells push from slide."""

    model: str
    base: tuple[float, ...]  # where the robot stands
    object: tuple[float, ...]  # from where the object falls on the table, and how it is turned
    extra_height: float  # of the gripper at the start
    obj_range: float
    target_range: float
    target_offset: tuple[float, ...]


SETUPS = {
    "push": Setup(
        "push.xml", (0.405, 0.48, 0.0), (1.25, 0.53, 0.4, 1.0, 0.0, 0.0, 0.0),
        0.0, 0.15, 0.15, (0.0, 0.0, 0.0),
    ),
    "slide": Setup(
        "slide.xml", (0.05, 0.48, 0.0), (1.7, 1.1, 0.41, 1.0, 0.0, 0.0, 0.0),
        -0.02, 0.1, 0.3, (0.4, 0.0, 0.0),
    ),
}  # fmt: skip


def paper_noise(action: Array) -> float:
    """The paper's formula: sigma = |max(0, a - 0.5)|² / 2e."""
    return float(np.sum(np.maximum(0.0, action - 0.5) ** 2)) / (2 * math.e)


def code_noise(action: Array) -> float:
    """The formula of the authors' released code: sigma = mean(a²) / e."""
    return float(np.mean(action**2)) / math.e


NOISES: dict[str, Callable[[Array], float] | None] = {
    "none": None,
    "paper": paper_noise,
    "code": code_noise,
}

_LINK = "robot0:{}_link".format
_SHOULDER = ("shoulder_pan", "shoulder_lift")
_ARM = (*_SHOULDER, "upperarm_roll", "elbow_flex", "forearm_roll", "wrist_flex", "wrist_roll")
_HAND = ("gripper", "r_gripper_finger", "l_gripper_finger")
_TRUNK = ("torso_lift", "torso_fixed", "head_pan", "head_tilt")
_FOOT = ("base", "laser", "estop")

_TURN = np.array([1.0, 0.0, 1.0, 0.0])  # what upstream adds to the hand's at every step
_TINY = 4 * float(np.finfo(np.float64).eps)
_STATE = (
    mujoco.mjtState.mjSTATE_FULLPHYSICS.value
    | mujoco.mjtState.mjSTATE_WARMSTART.value
    | mujoco.mjtState.mjSTATE_CTRL.value
    | mujoco.mjtState.mjSTATE_MOCAP_POS.value
    | mujoco.mjtState.mjSTATE_MOCAP_QUAT.value
)


def check_mujoco(version: str) -> None:
    """Refuses a MuJoCo with which the observations are not upstream's, or nobody has looked."""
    low, high = SUPPORTED
    if not low <= tuple(int(n) for n in re.findall(r"\d+", version)[:3]) < high:
        low_, high_ = (".".join(map(str, v)) for v in SUPPORTED)
        raise UserError(
            f"the Fetch tasks need another MuJoCo than {version}: "
            f"pip install 'mujoco>={low_},<{high_}'"
        )


def _choose(word: str, valid: Iterable[str], what: str) -> None:
    if word not in valid:
        raise nearest(word, valid, what)


def _model_path(name: str) -> str:
    spec = find_spec("gymnasium_robotics")
    if spec is None or spec.origin is None:
        raise UserError("the Fetch models are missing: pip install gymnasium-robotics")
    return str(Path(spec.origin).parent / "envs/assets/fetch" / name)


def _light(path: str) -> mujoco.MjModel:
    """The model without the collisions that are rare, and without the cameras' massless bodies.

    Hand and base still meet table, floor and object, and shoulder, wrist and hand each other.
    """
    spec = mujoco.MjSpec.from_file(path)

    def delete(thing: Any) -> None:
        thing.delete() if hasattr(thing, "delete") else spec.delete(thing)  # by MuJoCo's version

    # What may touch: contype of one in conaffinity of the other. All else has 1 and 1.
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
    """Points whose convex hull holds the geom, in its own frame."""
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
    """Whether a step of the light model missed no contact, from the positions it went through.

    A row holds the positions of the joints, up to the object's place, and of the bodies of the arm
    and the hand at one substep. Each link lies within a sphere around its body. What could touch
    is kept apart by bounds on the numbers of a row.
    """

    # Within these the arm down to the elbow is off the trunk, and the arm is off itself.
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
    RAISED, AHEAD = -0.95, 0.4  # an arm lifted beyond the first must pan less than the second
    PLANE = 0.49  # the arm stays above this height and the object below; the table's top is at 0.4
    MARGIN = 0.01  # contacts begin at 0.001; the rest is for what head and torso may move
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
            """How far links that hardly move reach along an axis."""
            bodies = [(link, data.body(_LINK(link))) for link in links]
            ends = [hull(link) @ b.xmat.reshape(3, 3)[axis] + b.xpos[axis] for link, b in bodies]
            return float(np.concatenate(ends).max())

        def above(at: int, low: float) -> None:
            self.low[at] = max(self.low[at], low + self.MARGIN)

        self.low[:3], self.high[:3] = data.qpos[:3] - 1e-3, data.qpos[:3] + 1e-3
        for name, (low, high) in self.JOINTS.items():
            at = full.joint(f"robot0:{name}_joint").qposadr[0]
            self.low[at], self.high[at] = low, high
        self.pan, self.lift = (full.joint(f"robot0:{s}_joint").qposadr[0] for s in _SHOULDER)

        front, top = extent(_TRUNK, 0), extent(_FOOT, 2)
        radius = {link: float(np.linalg.norm(hull(link), axis=1).max()) for link in links}
        for k, link in enumerate(_ARM):
            above(joints + 3 * k + 2, self.PLANE + radius[link])
        # The gripper lies within a cone between its body and the wrist's, of radii that follow.
        x, y, z = hull("gripper").T
        along = 1 + x / full.body(_LINK("gripper")).pos[0]
        aside = np.hypot(y, z)
        radius["gripper"] = float(((aside - (1 - along) * self.WRIST) / along).max())
        radius["wrist_roll"] = self.WRIST
        for k, link in list(enumerate(links))[4:]:
            above(joints + 3 * k, front + radius[link])
            above(joints + 3 * k + 2, top + radius[link])
        thing = float(np.linalg.norm(_corners(full, full.geom("object0").id), axis=1).max())
        above(joints - 3, max(front, extent(_FOOT, 0)) + thing)
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
        """`redraw`: draw again where the start already satisfies the goal; off is upstream."""
        check_mujoco(mujoco.__version__)
        _choose(task, SETUPS, "task")
        _choose(noise, NOISES, "noise")
        _choose(reward_type, ("sparse", "dense"), "reward_type")
        self.setup, self.sigma, self.redraw = SETUPS[task], NOISES[noise], redraw
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
        data.qpos[:3] = self.setup.base
        data.qpos[self._object :] = self.setup.object
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
        self._far = True  # whether the last step left everything clear

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
        """Puts the object somewhere near the gripper and draws a goal."""
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
        centre, reach = self._start_grip[:2], self.setup.obj_range
        place = centre
        while np.linalg.norm(place - centre) < 0.1:
            place = centre + self.np_random.uniform(-reach, reach, size=2)
        self._qpos[self._object : self._object + 2] = place
        self._settle()
        self._far = True

    def _draw_goal(self) -> Array:
        reach = self.setup.target_range
        goal = self._start_grip + self.np_random.uniform(-reach, reach, size=3)
        goal += self.setup.target_offset
        goal[2] = self._height
        return goal

    def step(self, action: Any) -> tuple[Observation, np.float32, bool, bool, dict[str, Any]]:
        """Moves the gripper towards where the action points, and simulates 0.04 seconds."""
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
        """All substeps with the light model, and again with the full one where that may differ."""
        model, data, step = self._model, self._data, mujoco.mj_step
        mujoco.mj_getState(model, data, self._state, _STATE)
        if self._far:
            joints, bodies = self._row
            for joints_row, bodies_row in self._row_views:
                step(model, data)
                joints_row[:], bodies_row[:] = joints, bodies
            self._far = self._clearance.holds(self._rows)
        if not self._far:
            full, full_data = self._full, self._full_data
            mujoco.mj_setState(full, full_data, self._state, _STATE)
            step(full, full_data, nstep=SUBSTEPS)
            mujoco.mj_getState(full, full_data, self._state, _STATE)
            mujoco.mj_setState(model, data, self._state, _STATE)
            mujoco.mj_kinematics(model, data)
            self._far = self._clearance.holds(np.concatenate(self._row)[None])

    def _settle(self) -> None:
        """What an observation reads of the positions; a step computes the rest itself."""
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
        obs = np.concatenate((
            grip, place, place - grip, fingers, _euler(self._turn),
            move_jac @ qvel * dt - speed, turn_jac @ qvel * dt, speed, finger_speed * dt,
        ))  # fmt: skip
        return {
            "observation": obs,
            "achieved_goal": place.copy(),
            "desired_goal": self.goal.copy(),
        }

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        """-1 until the goal is achieved and 0 while it is, for one goal or a batch of them."""
        return self._reward(_distance(achieved_goal, desired_goal))

    def _reward(self, distance: Any) -> Any:
        if self.reward_type == "dense":
            return -distance
        return -(distance > self.distance_threshold).astype(np.float32)

    def render(self) -> NDArray[np.uint8] | None:
        """A picture of the full model, with the goal as a red ball."""
        if self.render_mode is None:
            return None
        full, data = self._full, self._full_data
        if self._renderer is None:
            try:
                self._renderer = mujoco.Renderer(full, 480, 480)
            except Exception as error:
                raise UserError(
                    "MuJoCo cannot draw: before Python starts, set MUJOCO_GL to egl or osmesa, "
                    "whichever is installed"
                ) from error
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
        """Gives the picture's memory back."""
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
    return np.array([
        -np.arctan2(yz, zz) if upright else 0.0,
        -np.arctan2(-xz, cy),
        -np.arctan2(xy, xx) if upright else -np.arctan2(-yx, yy),
    ])  # fmt: skip


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
    gym.register(
        f"uvd/{_name}",
        entry_point="uvd.tasks.fetch:FetchEnv",
        max_episode_steps=HORIZON,
        kwargs={"redraw": True, **_settings},
    )
