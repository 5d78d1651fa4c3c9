"""The algorithms, one file each; importing this registers them all."""

from uvd.agents import bc, dac, gail, her, td3, uvd, vdi
from uvd.agents.agent import ALGORITHMS, Agent, Algorithm, Spec, get_algorithm

__all__ = [
    "ALGORITHMS", "Agent", "Algorithm", "Spec", "bc", "dac", "gail", "get_algorithm", "her", "td3",
    "uvd", "vdi",
]  # fmt: skip
