"""The algorithms, one file each; importing this registers them all."""

from uvd.agents import her, td3, uvd
from uvd.agents.agent import ALGORITHMS, Agent, Algorithm, Spec, get_algorithm

__all__ = ["ALGORITHMS", "Agent", "Algorithm", "Spec", "get_algorithm", "her", "td3", "uvd"]
