"""A trial's process: it trains one run folder to its end, and ends with whoever started it."""

import os
import sys
import threading
from pathlib import Path

from uvd import api
from uvd.core.errors import Stopped, UserError


def _end_with_parent() -> None:
    """The parent holds the other end of our input: it closes when the parent dies, however."""
    os.read(0, 1)  # not sys.stdin, whose lock would be held when Python ends
    os._exit(130)


def main(path: str) -> int:
    """Goes on with the run; returns the exit code."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        api.resume(Path(path))
    except UserError as error:
        print(error)
        return 130 if isinstance(error, Stopped) else 2
    except KeyboardInterrupt:  # an orderly end would wait for what is being compiled
        os._exit(130)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
