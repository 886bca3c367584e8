"""From what a step returns to the arguments of ``VoicePrivacy.update``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vpmetrics._engine.names import closest

ARGUMENTS = ("original", "protected", "speakers", "utterances", "sessions", "groups")
_REQUIRED = set(ARGUMENTS[:3])
_KNOWN = {*ARGUMENTS, "is_reference", "lengths"}

Keys = Sequence[str] | Mapping[str, str] | Callable[[Any], Any]
ResolvedKeys = dict[str, str] | Callable[[Any], Any]


def resolve_keys(keys: Any, has_encoder: bool) -> ResolvedKeys:
    """Return the key of each argument, or ``keys`` itself where it is a function.

    Example:
        >>> resolve_keys(("x", "y", "speaker"), has_encoder=False)
        {'original': 'x', 'protected': 'y', 'speakers': 'speaker'}
    """
    if callable(keys):
        function: Callable[[Any], Any] = keys
        return function
    named = keys
    if isinstance(keys, Sequence) and not isinstance(keys, str) and len(keys) <= len(ARGUMENTS):
        named = dict(zip(ARGUMENTS, keys, strict=False))
    is_valid = isinstance(named, Mapping) and set(named) >= _REQUIRED and set(named) <= _KNOWN
    if not is_valid or not all(isinstance(key, str) for key in named.values()):
        raise ValueError(
            "Expected `keys` to be the keys of original, protected, speakers and, if any, utterances, sessions and "
            "groups, in this order; a dictionary from these, 'is_reference' and 'lengths' to keys; or a function; "
            f"but got {keys!r}."
        )
    if "lengths" in named and not has_encoder:
        raise ValueError("Expected no 'lengths' in `keys` without an `encoder`: embeddings are not padded.")
    return dict(named)


def has_keys(outputs: Any, keys: ResolvedKeys) -> bool:
    """Return whether a training step, which need not return anything, returned what attackers can observe."""
    return callable(keys) or (isinstance(outputs, Mapping) and all(key in outputs for key in keys.values()))


def read_outputs(outputs: Any, keys: ResolvedKeys, step: str) -> dict[str, Any] | None:
    """Return the arguments of ``update`` that a step returned; None for a batch that does not count.

    Example:
        >>> keys = {"original": "x", "protected": "y", "speakers": "speaker"}
        >>> read_outputs({"x": 1, "y": 2, "speaker": 3, "loss": 4}, keys, "validation_step")
        {'original': 1, 'protected': 2, 'speakers': 3}
    """
    if callable(keys):
        arguments = keys(outputs)
        if isinstance(arguments, (tuple, list)) and len(arguments) <= len(ARGUMENTS):
            arguments = dict(zip(ARGUMENTS, arguments, strict=False))
        if arguments is not None and not (isinstance(arguments, Mapping) and set(arguments) >= _REQUIRED):
            raise TypeError(
                "Expected the function `keys` to return (original, protected, speakers), with utterances, sessions and "
                f"groups if any, a dictionary of these, or None, but got {type(arguments).__name__}."
            )
        return None if arguments is None else dict(arguments)
    required = ", ".join(f"{key!r}: ..." for key in keys.values())
    expected = f"Expected `{step}` to return {{{required}}}, which PrivacyMonitor reads by its `keys`, but"
    if not isinstance(outputs, Mapping):
        raise TypeError(f"{expected} got {type(outputs).__name__}.")
    for key in keys.values():
        if key not in outputs:
            raise ValueError(f"{expected} {key!r} is missing. {closest(key, map(str, outputs))}")
    return {argument: outputs[key] for argument, key in keys.items()}
