"""The log of a run's finished episodes."""

import os
import struct
import zlib
from collections.abc import Iterator
from itertools import count, takewhile, zip_longest
from pathlib import Path

import numpy as np
import safetensors.numpy

from uvd.core.errors import UserError, refused
from uvd.runs.files import Arrays, append_to_file, arrays_to_bytes, sync


class EpisodeLog:
    """Append-only log of finished episodes, one file per seed (episodes/seed<k>.bin).

    A record is a batch of E episodes: arrays with a leading axis E, among them `length` int32[E],
    so that episodes of different lengths can be padded. On disk it is a header (magic, size and
    crc32 of the payload, crc32 of the header before it) and the arrays as safetensors.
    """

    _magic = b"UVD1"
    _header = struct.Struct("<4sQII")

    def __init__(self, folder: Path):
        self._folder = folder

    def append_batch(self, seed: int, episodes: Arrays) -> None:
        """Appends E stacked episodes as one record."""
        payload = arrays_to_bytes(episodes | {"length": np.asarray(episodes["length"], np.int32)})
        head = struct.pack("<4sQI", self._magic, len(payload), zlib.crc32(payload))
        head += struct.pack("<I", zlib.crc32(head))
        append_to_file(self._path(seed), head + payload)

    def sync(self) -> list[int]:
        """Makes what was appended durable; returns the size of each seed's file, by seed."""
        if self._folder.exists():
            for path in (*self._folder.iterdir(), self._folder):
                sync(path)
        return self._sizes()

    def truncate(self, positions: list[int]) -> None:
        """Cuts what was appended after `sync` returned `positions`."""
        for seed, (size, end) in enumerate(zip_longest(self._sizes(), positions, fillvalue=0)):
            path = self._path(seed)
            if size < end:
                raise _damaged(path, size, f"it ends there, the checkpoint needs {end}")
            if size > end:
                with refused(f"cannot cut {path}", OSError):
                    os.truncate(path, end)

    def read(self, seed: int) -> Iterator[Arrays]:
        """The records of a seed as written, without an incomplete last one."""
        path = self._path(seed)
        if not path.exists():
            return
        with path.open("rb") as file:
            while True:
                start = file.tell()
                head = file.read(self._header.size)
                if len(head) < self._header.size:
                    return
                magic, length, payload_crc, head_crc = self._header.unpack(head)
                if magic != self._magic or zlib.crc32(head[:-4]) != head_crc:
                    raise _damaged(path, start, "not the header of a record")
                payload = file.read(length)
                if len(payload) < length:
                    return
                if zlib.crc32(payload) != payload_crc:
                    raise _damaged(path, start, "the checksum differs")
                yield safetensors.numpy.load(payload)

    def _path(self, seed: int) -> Path:
        return self._folder / f"seed{seed}.bin"

    def _sizes(self) -> list[int]:
        """Size in bytes of each seed's file."""
        paths = takewhile(Path.exists, map(self._path, count()))
        return [path.stat().st_size for path in paths]


def _damaged(path: Path, offset: int, reason: str) -> UserError:
    return UserError(f"{path} is damaged at byte {offset} ({reason}): start again with --overwrite")
