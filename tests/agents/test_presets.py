"""Presets: every one of them learns, and those of the paper hold its numbers."""
