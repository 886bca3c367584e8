"""A second device for tests, `"second"`.

No accelerator, but memory of its own, and whoever looks at it is counted.

It stays registered with PyTorch until the process ends; built once by whatever C++ compiler there
is, in five seconds.
"""

import hashlib
import os
import shutil
import subprocess
import types
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from cases import mapped
from torch._subclasses import fake_tensor

_SOURCE = Path(__file__).parent / "backend.cpp"


class Looks(NamedTuple):
    """What makes the host wait for a device, or the device for the host, and how often."""

    reads: int  # single values, as `bool` and `int` of a tensor need
    to_host: int  # copies, as `tolist` needs
    to_device: int  # copies of what the host made
    shapes: int  # results whose shape depends on values


@contextmanager
def looking():
    """Count looks: ``with looking() as seen: ...``, then ``seen[0]``."""
    before, seen = torch.ops.second_device.counts(), []
    yield seen
    after = torch.ops.second_device.counts()
    seen.append(Looks(*(now - then for now, then in zip(after, before, strict=True))))


def compiler():
    """A C++ compiler, if there is any."""
    return shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++")


@cache
def second_device():
    """The device, registered."""
    torch.ops.load_library(_built())
    torch.utils.rename_privateuse1_backend("second")
    torch.ops.second_device.init()
    torch._register_device_module("second", _module())
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    # Fake tensors of devices that are not there shall stay fake, although there is a second device
    # now.
    fake_tensor._is_privateuse1_backend_available = lambda: False
    return torch.device("second")


def sent(batch, device):
    """The batch with every tensor on the device."""
    return mapped(batch, lambda tensor: tensor.detach().to(device))


def _built():
    """The library, from the cache unless its source, PyTorch or the compiler are others."""
    cxx, home = compiler(), Path(torch.__file__).parent
    made_from = _SOURCE.read_text() + f"{torch.__version__} {home} {cxx}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vpmetrics"
    library = cache / f"second_device_{hashlib.sha256(made_from.encode()).hexdigest()[:16]}.so"
    if not library.exists():
        cache.mkdir(parents=True, exist_ok=True)
        draft = library.with_suffix(f".{os.getpid()}")  # several processes may come here at once
        options = [
            "-shared",
            "-fPIC",
            "-O0",
            "-w",
            "-std=c++20",
            f"-I{home}/include",
            f"-L{home}/lib",
        ]
        options += [f"-I{home}/include/torch/csrc/api/include", "-ltorch_cpu", "-lc10"]
        subprocess.run([cxx, str(_SOURCE), "-o", str(draft), *options], check=True)
        draft.replace(library)
    return library


def _module():
    """What PyTorch asks ``torch.second`` for."""
    module = types.ModuleType("second")
    answers = {"is_available": True, "device_count": 1, "current_device": 0, "is_initialized": True}
    for name, answer in {**answers, "_is_in_bad_fork": False}.items():
        setattr(module, name, lambda *_, answer=answer: answer)
    module.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]
    module.get_rng_state = lambda _=0: torch.get_rng_state()
    module.set_rng_state = module.manual_seed_all = lambda *_: None
    module.device = lambda _: nullcontext()
    return module
