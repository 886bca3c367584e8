"""From what a ``validation_step`` returned to the arguments of a metric."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from vpmetrics.lightning.names import closest

ARGUMENTS = ("original", "protected", "speakers", "utterances")

Keys = Sequence[str] | Callable[[Any], Any]


def check_keys(keys: Any) -> None:
    """Refuse anything but three or four names, or a function."""
    if callable(keys):
        return
    expected = "Expected `keys` to be the names of original, protected, speakers and, if any, utterances; or a function"
    if isinstance(keys, str) or not isinstance(keys, Sequence) or not all(isinstance(key, str) for key in keys):
        raise TypeError(f"{expected}, but got {keys!r}.")
    if len(keys) not in (3, 4) or len(set(keys)) != len(keys):
        raise ValueError(f"{expected}, but got {tuple(keys)}.")


def tensors_of_step(
    outputs: Any,
    keys: Keys,
    step: str,
    device: torch.device,
    embed: Callable[[Any], Any] | None = None,
) -> dict[str, Any] | None:
    """Arguments of ``update``, on the device of the module; None for a batch that is not to be counted.

    Args:
        outputs: What the step returned.
        keys: Three or four names, or a function of ``outputs``.
        step: Name of the step, for messages.
        device: Where the arguments are to be.
        embed: From audio to embeddings, where the step returns audio.

    Returns:
        A dictionary with some of ``original``, ``protected``, ``speakers``, ``utterances`` and ``is_reference``.

    Example:
        >>> outputs = {"loss": torch.tensor(0.1), "x": torch.ones(2, 3), "y": torch.ones(2, 3), "who": torch.arange(2)}
        >>> list(tensors_of_step(outputs, ("x", "y", "who"), "validation_step", torch.device("cpu")))
        ['original', 'protected', 'speakers']
    """
    found = _called(outputs, keys) if callable(keys) else _looked_up(outputs, keys, step)
    if found is None:
        return None
    if embed is not None:
        found = {name: embed(value) if name in ARGUMENTS[:2] else value for name, value in found.items()}
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in found.items()}


def _called(outputs: Any, keys: Callable[[Any], Any]) -> dict[str, Any] | None:
    found = keys(outputs)
    if found is None:
        return None
    if isinstance(found, Mapping):
        return dict(found)
    if not isinstance(found, (tuple, list)) or len(found) not in (3, 4):
        raise TypeError(
            "Expected the function `keys` to return (original, protected, speakers), with utterances as a fourth if "
            f"any, or a dictionary of these, but got {_described(found)}."
        )
    return dict(zip(ARGUMENTS, found, strict=False))


def _looked_up(outputs: Any, keys: Sequence[str], step: str) -> dict[str, Any]:
    wanted = ", ".join(map(repr, keys))
    if not isinstance(outputs, Mapping):
        raise TypeError(
            f"Expected `{step}` to return a dictionary with {wanted}, which PrivacyMonitor reads, but got "
            f"{_described(outputs)}. Let the step end in `return {{{', '.join(f'{key!r}: ...' for key in keys)}}}`."
        )
    for key in keys:
        if key not in outputs:
            raise ValueError(
                f"Expected the dictionary `{step}` returns to hold {wanted}, which PrivacyMonitor reads, but {key!r} "
                f"is missing; it holds {', '.join(map(repr, outputs))}. {closest(key, map(str, outputs))} "
                "Return it, or say by `keys` where it is."
            )
    return dict(zip(ARGUMENTS, (outputs[key] for key in keys), strict=False))


def _described(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"{len(value)} values" if isinstance(value, (tuple, list)) else type(value).__name__
