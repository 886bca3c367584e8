"""From what a step returned to the arguments of a metric."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from vpmetrics._names import closest

ARGUMENTS = ("original", "protected", "speakers", "utterances", "sessions", "groups")  # in the order of names
_MORE = ("is_reference", "lengths")  # only by name
_NEEDED = ARGUMENTS[:3]

Keys = Sequence[str] | Mapping[str, str] | Callable[[Any], Any]


ResolvedKeys = dict[str, str] | Callable[[Any], Any]


def resolve_keys(keys: Any, has_encoder: bool) -> ResolvedKeys:
    """Keys by the arguments they are read for, or the function as it is.

    Example:
        >>> resolve_keys(("x", "y", "who"), has_encoder=False)
        {'original': 'x', 'protected': 'y', 'speakers': 'who'}
    """
    if callable(keys):
        function: Callable[[Any], Any] = keys
        return function
    expected = (
        "Expected `keys` to be the names of original, protected, speakers and, if any, utterances, sessions and "
        "groups, in this order; a dictionary of them; or a function"
    )
    values = list(keys.values()) if isinstance(keys, Mapping) else keys
    if isinstance(values, str) or not isinstance(values, Sequence) or not all(isinstance(key, str) for key in values):
        raise TypeError(f"{expected}, but got {keys!r}.")
    if not isinstance(keys, Mapping):
        if not len(_NEEDED) <= len(keys) <= len(ARGUMENTS) or len(set(keys)) != len(keys):
            raise ValueError(f"{expected}, but got {tuple(keys)}.")
        return dict(zip(ARGUMENTS, keys, strict=False))
    if not set(_NEEDED) <= set(keys) <= {*ARGUMENTS, *_MORE}:
        known = ", ".join((*ARGUMENTS, *_MORE))
        raise ValueError(f"Expected `keys` to say where {', '.join(_NEEDED)} are, of {known}, but got {list(keys)}.")
    if "lengths" in keys and not has_encoder:
        raise ValueError("Expected no 'lengths' in `keys` without an `encoder`: embeddings are not padded.")
    return dict(keys)


def arguments_of_step(outputs: Any, keys: ResolvedKeys, step: str, device: torch.device) -> dict[str, Any] | None:
    """Arguments of ``update``, on the device of the module; None for a batch that is not to be counted.

    Args:
        outputs: What the step returned.
        keys: Keys by argument, or a function of ``outputs``.
        step: Name of the step, for messages.
        device: Where the arguments are to be.

    Example:
        >>> outputs = {"loss": torch.tensor(0.1), "x": torch.ones(2, 3), "y": torch.ones(2, 3), "who": torch.arange(2)}
        >>> keys = {"original": "x", "protected": "y", "speakers": "who"}
        >>> list(arguments_of_step(outputs, keys, "validation_step", torch.device("cpu")))
        ['original', 'protected', 'speakers']
    """
    found = _called(outputs, keys) if callable(keys) else _looked_up(outputs, keys, step)
    if found is None:
        return None
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in found.items()}


def may_have(keys: ResolvedKeys, argument: str) -> bool:
    """Whether an argument may be among what these keys lead to."""
    return callable(keys) or argument in keys


def has_keys(outputs: Any, keys: ResolvedKeys) -> bool:
    """Whether a training step, of which nobody asks it, returned what can be watched."""
    return callable(keys) or (isinstance(outputs, Mapping) and all(key in outputs for key in keys.values()))


def _called(outputs: Any, keys: Callable[[Any], Any]) -> dict[str, Any] | None:
    found = keys(outputs)
    if found is None:
        return None
    if isinstance(found, Mapping):
        return dict(found)
    if not isinstance(found, (tuple, list)) or not len(_NEEDED) <= len(found) <= len(ARGUMENTS):
        raise TypeError(
            "Expected the function `keys` to return (original, protected, speakers), with utterances, sessions and "
            f"groups if any, or a dictionary of these, but got {_described(found)}."
        )
    return dict(zip(ARGUMENTS, found, strict=False))


def _looked_up(outputs: Any, keys: dict[str, str], step: str) -> dict[str, Any]:
    wanted = ", ".join(map(repr, keys.values()))
    if not isinstance(outputs, Mapping):
        ends = ", ".join(f"{key!r}: ..." for key in keys.values())
        raise TypeError(
            f"Expected `{step}` to return a dictionary with {wanted}, which PrivacyMonitor reads, but got "
            f"{_described(outputs)}. Let the step end in `return {{{ends}}}`."
        )
    for key in keys.values():
        if key not in outputs:
            raise ValueError(
                f"Expected the dictionary `{step}` returns to hold {wanted}, which PrivacyMonitor reads, but {key!r} "
                f"is missing; it holds {', '.join(map(repr, outputs))}. {closest(key, map(str, outputs))} "
                "Return it, or say by `keys` where it is."
            )
    return {argument: outputs[key] for argument, key in keys.items()}


def _described(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"{len(value)} values" if isinstance(value, (tuple, list)) else type(value).__name__
