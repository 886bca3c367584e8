"""NumPy's files, and of Python objects in them no more than text: to unpickle is to run what a file says."""

from __future__ import annotations

import pickle
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.lib import format as npy

from vpmetrics.app.columns import Array
from vpmetrics.app.errors import InputError


def load_npy(file: BinaryIO, path: str) -> Array:
    """An array; one of objects where these are texts, as Pandas saves them."""
    version = npy.read_magic(file)
    _, _, dtype = (npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0)(file)
    if not dtype.hasobject:
        file.seek(0)
        return cast(Array, npy.read_array(file, allow_pickle=False))
    return _texts(_OnlyArrays(file, path).load(), path)


def load_npz(file: BinaryIO, path: str) -> dict[str, Array]:
    """All arrays of an archive."""
    with np.load(file, allow_pickle=False) as archive:
        arrays = {}
        for entry in archive.zip.namelist():
            name = entry.removesuffix(".npy")
            with archive.zip.open(entry) as member:
                arrays[name] = load_npy(cast(BinaryIO, member), f"{path}:{name}")
        return arrays


_MADE: dict[str, Any] = {"_reconstruct": np.zeros(0).__reduce__()[0], "ndarray": np.ndarray, "dtype": np.dtype}


class _OnlyArrays(pickle.Unpickler):
    """Makes arrays, and nothing else that a file may ask for."""

    def __init__(self, file: BinaryIO, path: str) -> None:
        super().__init__(file)
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        """The three names an array is made by."""
        if module.split(".")[0] == "numpy" and name in _MADE:
            return _MADE[name]
        raise InputError(f"holds other objects than texts ({module}.{name}); save numbers or texts", self._path)


def _texts(objects: Array, path: str) -> Array:
    wrong = {type(value).__name__ for value in objects.flat if not isinstance(value, (str, bytes, int))}
    if wrong:
        raise InputError(f"expected numbers or texts, but got objects: {', '.join(sorted(wrong))}", path)
    return np.array([value.decode() if isinstance(value, bytes) else str(value) for value in objects.flat]).reshape(
        objects.shape
    )
