"""A second device for tests, `"second"`: no accelerator, but memory of its own, and whoever looks at it is counted.

It stays registered with PyTorch until the process ends; built once by whatever C++ compiler there is, in five seconds.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import types
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from cases import Batch, mapped
from torch._subclasses import fake_tensor

_SOURCE = Path(__file__).parent / "backend.cpp"


class Looks(NamedTuple):
    """What makes the host wait for a device, or the device for the host, and how often."""

    reads: int  # single values, as `bool` and `int` of a tensor need
    to_host: int  # copies, as `tolist` needs
    to_device: int  # copies of what the host made
    shapes: int  # results whose shape depends on values

    def __sub__(self, before: Looks) -> Looks:
        return Looks(*(now - then for now, then in zip(self, before, strict=True)))

    @property
    def transfers(self) -> int:
        """All but shapes."""
        return self.reads + self.to_host + self.to_device


def compiler() -> str | None:
    """A C++ compiler, if there is any."""
    return shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++")


@cache
def second_device() -> torch.device:
    """The device, registered."""
    torch.ops.load_library(_built())
    torch.utils.rename_privateuse1_backend("second")
    torch.ops.second_device.init()
    torch._register_device_module("second", _module())
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    # Fake tensors of devices that are not there shall stay fake, although there is a second device now.
    fake_tensor._is_privateuse1_backend_available = lambda: False
    return torch.device("second")


def sent(batch: Batch, device: torch.device | str) -> Batch:
    """The batch with every tensor on the device."""
    return mapped(batch, lambda tensor: tensor.detach().to(device))


class Looking:
    """Counts looks: ``with Looking() as seen: ...``, then ``seen.looks``."""

    def __enter__(self) -> Looking:
        self._before = _counts()
        return self

    def __exit__(self, *_: object) -> None:
        self.looks = _counts() - self._before


def _counts() -> Looks:
    return Looks(*torch.ops.second_device.counts())


def _built() -> Path:
    """The library, from the cache unless its source, PyTorch or the compiler are others."""
    cxx, torch_home = compiler() or "c++", Path(torch.__file__).parent
    made_from = _SOURCE.read_text() + f"{torch.__version__} {torch_home} {cxx}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vpmetrics"
    library = cache / f"second_device_{hashlib.sha256(made_from.encode()).hexdigest()[:16]}.so"
    if not library.exists():
        cache.mkdir(parents=True, exist_ok=True)
        draft = library.with_suffix(f".{os.getpid()}")  # several processes may come here at once
        headers = (f"-I{torch_home / 'include' / part}" for part in ("", "torch/csrc/api/include"))
        libraries = (f"-L{torch_home / 'lib'}", "-ltorch_cpu", "-lc10")
        options = ("-shared", "-fPIC", "-O0", "-w", "-std=c++20", *headers)
        subprocess.run([cxx, *options, str(_SOURCE), "-o", str(draft), *libraries], check=True)
        draft.replace(library)
    return library


def _module() -> types.ModuleType:
    """What PyTorch asks ``torch.second`` for."""
    module = types.ModuleType("second")
    answers = {"is_available": True, "device_count": 1, "current_device": 0, "is_initialized": True}
    for name, answer in {**answers, "_is_in_bad_fork": False}.items():
        setattr(module, name, lambda *_, answer=answer: answer)
    module.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]
    module.get_rng_state = lambda _=0: torch.get_rng_state()
    module.set_rng_state = lambda *_: None
    module.manual_seed_all = lambda _: None
    module.device = lambda _: nullcontext()
    return module
