"""Proof that the light model of the Fetch tasks misses no contact while its clearance holds.

Two links whose contacts the light model leaves out are either kept apart by planes, or the ranges
of their joints are bisected until each cell is clear: at the cell's centre the links are further
apart than they can move within the cell. Distances are lower bounds: the gap between two parallel
planes that separate the links' vertices. A joint moves a link by at most its angle times the link's
largest distance from its axis.
"""

import itertools

import mujoco
import numpy as np
import pytest
from scipy.spatial import ConvexHull

from uvd.tasks.fetch import _ARM, _FOOT, _HAND, _LINK, _SHOULDER, _TRUNK, SETUPS, FetchEnv
from uvd.tasks.fetch import _Clearance as Clearance
from uvd.tasks.fetch import _corners as corners

pytestmark = pytest.mark.slow
TOUCH = 0.002  # the distance at which contacts begin, with the margins of both geoms


class Robot:
    def __init__(self):
        self.env = FetchEnv("push")
        self.model, self.data = self.env._full, self.env._full_data
        self.names = [self.model.joint(j).name for j in range(self.model.njnt)]
        self.free = {f"robot0:{name}_joint": b for name, b in Clearance.JOINTS.items()}
        self.free["robot0:wrist_roll_joint"] = (-np.pi, np.pi)
        self.points, self.bodies = {}, {}
        for link in (*_ARM, *_HAND, *_TRUNK, *_FOOT):
            geom = self.model.geom(_LINK(link))
            points = corners(self.model, geom.id)
            self.points[link] = points[ConvexHull(points).vertices]
            self.bodies[link] = int(geom.bodyid[0])

    def checked(self, a, b):
        """Whether MuJoCo looks for contacts between two links at all."""
        m = self.model
        one, two = sorted((self.bodies[a], self.bodies[b]))
        weld = m.body_weldid[[one, two]]
        above = m.body_weldid[m.body_parentid[weld]]
        related = weld[0] == weld[1] or weld[0] == above[1] or weld[1] == above[0]
        return not related and (one << 16) + two not in m.exclude_signature

    def levers(self, link):
        """The movement of a link's farthest point per radian (or metre) of each joint above it."""
        m, body = self.model, self.bodies[link]
        geom = m.geom(_LINK(link))
        turn = np.empty(9)
        mujoco.mju_quat2Mat(turn, geom.quat)
        near = self.points[link] @ turn.reshape(3, 3).T + geom.pos  # in the body's frame
        far, levers = 0.0, {}
        while body:
            for joint in range(m.body_jntadr[body], m.body_jntadr[body] + m.body_jntnum[body]):
                axis = m.jnt_axis[joint]
                aside = np.linalg.norm(near - np.outer(near @ axis, axis), axis=1).max()
                slides = m.jnt_type[joint] == mujoco.mjtJoint.mjJNT_SLIDE
                levers[joint] = 1.0 if slides else aside + far
            if m.body_jntnum[body]:
                far += np.linalg.norm(near, axis=1).max()
                near = m.body_pos[body][None]
            else:  # welded to its parent: one rigid thing
                mujoco.mju_quat2Mat(turn, m.body_quat[body])
                near = near @ turn.reshape(3, 3).T + m.body_pos[body]
            if self.names[m.body_jntadr[body]] == "robot0:torso_lift_joint":
                far += 0.02  # it slides
            body = m.body_parentid[body]
        return levers

    def apart(self, a, b):
        """A lower bound of the distance between two links at the current joint positions."""
        d, (one, two) = self.data, (self.model.geom(_LINK(link)).id for link in (a, b))
        turn_a, turn_b = d.geom_xmat[one].reshape(3, 3), d.geom_xmat[two].reshape(3, 3)
        points_a = self.points[a] @ turn_a.T + d.geom_xpos[one]
        points_b = self.points[b] @ turn_b.T + d.geom_xpos[two]
        ends, best = np.empty(6), -np.inf
        for first, second in ((one, two), (two, one)):  # MuJoCo's answer fails now and then
            if mujoco.mj_geomDistance(self.model, d, first, second, 2.0, ends) <= 0:
                continue
            way = (ends[3:] - ends[:3]) * (1 if first == one else -1)
            length = np.linalg.norm(way)
            best = max(best, ((points_b @ way).min() - (points_a @ way).max()) / length)
            if best > length - 1e-3:
                return best
        way = d.geom_xpos[two] - d.geom_xpos[one]
        for _ in range(100):  # Frank-Wolfe steps to the nearest points
            length = np.linalg.norm(way)
            near_a = points_a[(points_a @ way).argmax()]
            near_b = points_b[(points_b @ way).argmin()]
            best = max(best, (near_b - near_a) @ way / length)
            if best > length - 1e-3 or length < 1e-6:
                break
            move = near_b - near_a - way
            way = way + np.clip(-(way @ move) / (move @ move + 1e-18), 0, 1) * move
        return best

    def clear(self, a, b):
        """Bisects the ranges of the joints between two links until every cell is clear."""
        above_a, above_b = self.levers(a), self.levers(b)
        levers = {
            j: above_a.get(j, 0.0) + above_b.get(j, 0.0) for j in above_a.keys() ^ above_b.keys()
        }
        joints = sorted(levers)
        weight = np.array([levers[j] for j in joints])
        bounds = np.array([self.free[self.names[j]] for j in joints])
        cells, stack = 0, [(bounds[:, 0], bounds[:, 1])]
        while stack:
            low, high = stack.pop()
            if self.forbidden(joints, low, high):
                continue
            centre, half = (low + high) / 2, (high - low) / 2
            self.data.qpos[joints] = centre
            mujoco.mj_kinematics(self.model, self.data)
            gap, cells = self.apart(a, b), cells + 1
            if gap - weight @ half > TOUCH:
                continue
            assert gap > TOUCH, (a, b, dict(zip([self.names[j] for j in joints], centre)), gap)
            assert cells < 1_000_000, (a, b)
            k = (weight * half).argmax()
            upper, lower = low.copy(), high.copy()
            upper[k] = lower[k] = centre[k]
            stack += [(low, lower), (upper, high)]

    def forbidden(self, joints, low, high):
        """Whether the clearance never holds in a cell: the arm is raised and pans too far."""
        pan, lift = (self.names.index(f"robot0:{s}_joint") for s in _SHOULDER)
        if pan not in joints or lift not in joints:
            return False
        p, l = joints.index(pan), joints.index(lift)
        aside = low[p] >= Clearance.AHEAD or high[p] <= -Clearance.AHEAD
        return high[l] <= Clearance.RAISED and aside


BODY = (*_TRUNK, *_FOOT)
PAIRS = [
    *itertools.product(_ARM[:4], _TRUNK),  # planes suffice for the foot and for the other links
    *itertools.combinations(BODY, 2),
    *itertools.combinations((*_ARM, *_HAND), 2),
]
IN_LIGHT_MODEL = {*itertools.product(_SHOULDER, ("wrist_roll", *_HAND))}


@pytest.fixture(scope="module")
def robot():
    return Robot()


@pytest.mark.parametrize(("a", "b"), [pair for pair in PAIRS if pair not in IN_LIGHT_MODEL])
def test_links_whose_contacts_are_left_out_cannot_touch(robot, a, b):
    if robot.checked(a, b):
        robot.clear(a, b)


@pytest.mark.parametrize("task", SETUPS)
def test_the_body_stands_clear_of_table_and_floor(task):
    env = FetchEnv(task)
    model, data = env._full, env._full_data
    table = next(g for g in range(model.ngeom) if model.geom(g).bodyid == model.body("table0").id)
    near_edge = data.geom_xpos[table][0] - model.geom_size[table][0]
    for link in (*_TRUNK, *_FOOT):
        geom = data.geom(_LINK(link))
        points = corners(model, geom.id) @ geom.xmat.reshape(3, 3).T + geom.xpos
        assert points[:, 0].max() < near_edge - 0.02
        assert link == "base" or points[:, 2].min() > 0.02
