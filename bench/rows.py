"""A measured row: printed, and appended to a file of JSON lines."""

import json
from pathlib import Path


def report(row: dict, out: Path | None) -> None:
    """Three digits after the point."""
    text = json.dumps({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()})
    print(text, flush=True)
    if out:
        with out.open("a", encoding="utf-8") as file:
            file.write(text + "\n")
