"""TensorBoard events of a run."""

import time
from io import BytesIO
from pathlib import Path

from uvd.runs.files import append_to_file


class EventLog:
    """Writes metrics as TensorBoard scalars, one folder per seed and one file per process.

    TensorBoard's own writer would start a thread for each file. It reads files in the order of
    their names.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._name = f"events.out.tfevents.{time.time_ns()}"

    def append(self, step: int, metrics: dict[str, list[float | None]]) -> None:
        """Appends one value per seed of each metric; None is left out."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # slow to import
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        now = time.time()
        for seed in range(max(map(len, metrics.values()), default=0)):
            scalars = [
                Summary.Value(tag=tag, simple_value=values[seed])
                for tag, values in metrics.items()
                if seed < len(values) and values[seed] is not None
            ]
            events = [Event(step=step, wall_time=now, summary=Summary(value=scalars))]
            path = self._folder / f"seed{seed}" / self._name
            if not path.exists():
                # START drops what earlier files hold from this step on: a resumed run reports
                # these steps again.
                start = SessionLog(status=SessionLog.START)
                version = Event(wall_time=now, file_version="brain.Event:2")
                events = [version, Event(step=step, wall_time=now, session_log=start), *events]
            records = BytesIO()
            for event in events:
                RecordWriter(records).write(event.SerializeToString())
            append_to_file(path, records.getvalue())
