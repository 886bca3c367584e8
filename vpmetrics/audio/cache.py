"""Embeddings kept on disk by the content of their recordings."""

from __future__ import annotations

import os
import re
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from vpmetrics.audio.encoders import SpeakerEncoder
from vpmetrics.audio.reading import AudioError

Array = np.ndarray[Any, np.dtype[Any]]
_SAVE_SECONDS = 60.0


class EmbeddingCache:
    """Rows by the content of their recordings, in one file per encoder."""

    def __init__(self, folder: str | Path | None, encoder: SpeakerEncoder) -> None:
        self.rows: dict[str, Array] = {}
        self.path: Path | None = None
        if folder is not None:
            if encoder.identity is None:
                raise AudioError("Expected an encoder with a name to cache by: load_encoder(callable, name=...).")
            self.path = Path(folder, re.sub(r"[^\w.-]+", "_", encoder.identity) + ".npz")
            self.rows = self._load(self.path)
        self._saved_at, self._saved_rows = time.monotonic(), len(self.rows)

    @staticmethod
    def _load(path: Path) -> dict[str, Array]:
        try:
            with np.load(path) as file:
                keys, embeddings = file["keys"], file["embeddings"]
            first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
            return dict(zip(keys[first].tolist(), np.split(embeddings, first[1:]), strict=True))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):  # none yet, or damaged
            return {}

    def add(self, rows: dict[str, Array]) -> None:
        """Keep rows, and save once a minute."""
        self.rows.update(rows)
        if time.monotonic() - self._saved_at > _SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        """Write all rows, with those that another run has added meanwhile."""
        if self.path is not None and len(self.rows) > self._saved_rows:
            self.rows = {**self._load(self.path), **self.rows}
            keys = [key for key, rows in self.rows.items() for _ in rows]
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_npz(self.path, {"keys": np.array(keys), "embeddings": np.concatenate(list(self.rows.values()))})
        self._saved_at, self._saved_rows = time.monotonic(), len(self.rows)


def write_npz(path: Path, arrays: dict[str, Array]) -> None:
    """Write beside the file, and rename: a reader sees the old file or the new one."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
