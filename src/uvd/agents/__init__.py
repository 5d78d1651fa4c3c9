"""The algorithms, one file each; importing this registers them all."""

from uvd.agents import bc, dac, gail, her, kdi, td3, usher, uvd, vdi
from uvd.agents.agent import ALGORITHMS, Agent, Algorithm, Spec, get_algorithm

__all__ = ["ALGORITHMS", "Agent", "Algorithm", "Spec", "get_algorithm"]
__all__ += ["bc", "dac", "gail", "her", "kdi", "td3", "usher", "uvd", "vdi"]
