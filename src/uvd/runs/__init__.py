"""A run on disk: settings, metrics, episodes, checkpoints."""

from uvd.runs.folder import Run

__all__ = ["Run"]
