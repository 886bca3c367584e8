"""From what a step returns to the arguments of ``update``: keys, and audio through an encoder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torchmetrics.utilities import rank_zero_warn

from vpmetrics._util.scalar import closest_or_known_names

ARGUMENTS = ("original", "protected", "speakers", "utterances", "sessions", "groups")
SIDES = ARGUMENTS[:2]
_REQUIRED = set(ARGUMENTS[:3])
_ALLOWED = {*ARGUMENTS, "is_reference", "lengths"}
_SILENT_PERCENT = 1  # of a row; one that ends in more zeros counts as padded

Keys = Sequence[str] | Mapping[str, str] | Callable[[Any], Any]
ResolvedKeys = dict[str, str] | Callable[[Any], Any]


def resolve_keys(keys: Any, allows_lengths: bool) -> ResolvedKeys:
    """Return the key of each argument, or ``keys`` itself where it is a function."""
    if callable(keys):
        return keys  # type: ignore[no-any-return]
    named = _zip_with_argument_names(keys)
    is_valid = isinstance(named, Mapping) and set(named) >= _REQUIRED and set(named) <= _ALLOWED
    if not is_valid or not all(isinstance(key, str) for key in named.values()):
        raise ValueError(
            "Expected `keys` to be the keys of original, protected, speakers and, if any,"
            " utterances, sessions and groups, in this order; a dictionary from these,"
            f" 'is_reference' and 'lengths' to keys; or a function; but got {keys!r}."
        )
    if "lengths" in named and not allows_lengths:
        raise ValueError(
            "Expected no 'lengths' in `keys` without an `encoder`: embeddings are not padded."
        )
    return dict(named)


def _zip_with_argument_names(values: Any) -> Any:
    """Return the values of a sequence by the arguments of ``update``; anything else as it is."""
    if not isinstance(values, Sequence) or isinstance(values, str) or len(values) > len(ARGUMENTS):
        return values
    return dict(zip(ARGUMENTS, values, strict=False))


def read_unskipped_outputs(
    outputs: Any, keys: ResolvedKeys, step_name: str
) -> dict[str, Any] | None:
    """Return the arguments of ``update`` that a step returned, or None.

    None where a function ``keys`` skips the batch, or a training step returns no embeddings.
    """
    if callable(keys):
        return _read_by_function(outputs, keys)
    missing = []
    for key in keys.values():
        if not isinstance(outputs, Mapping) or key not in outputs:
            missing.append(key)
    if missing and step_name == "training_step":
        return None
    required = ", ".join(f"{key!r}: ..." for key in keys.values())
    expected = (
        f"Expected `{step_name}` to return {{{required}}}, which PrivacyMonitor reads by its"
        " `keys`, but"
    )
    if not isinstance(outputs, Mapping):
        raise TypeError(f"{expected} got {type(outputs).__name__}.")
    if missing:
        hint = closest_or_known_names(missing[0], map(str, outputs))
        raise ValueError(f"{expected} {missing[0]!r} is missing. {hint}")
    return {argument: outputs[key] for argument, key in keys.items()}


def _read_by_function(outputs: Any, keys: Callable[[Any], Any]) -> dict[str, Any] | None:
    """Return the arguments that a function finds in what a step returned, or None to skip it."""
    arguments = _zip_with_argument_names(keys(outputs))
    if arguments is None:
        return None
    if not isinstance(arguments, Mapping) or not set(arguments) >= _REQUIRED:
        raise TypeError(
            "Expected the function `keys` to return (original, protected, speakers), with"
            " utterances, sessions and groups if any, a dictionary of these, or None, but got"
            f" {type(arguments).__name__}."
        )
    return dict(arguments)


class FrozenEncoders:
    """Several frozen encoders of one attacker, by name."""

    def __init__(self, encoders: Mapping[str, FrozenEncoder]) -> None:
        self.encoders = dict(encoders)

    def check_is_untrained(self, module_weights: Iterable[nn.Parameter]) -> None:
        """Raise if the module trains a weight of an encoder."""
        weights = list(module_weights)
        for encoder in self.encoders.values():
            encoder.check_is_untrained(weights)

    def freeze_and_rotate_cache(self, device: torch.device) -> None:
        """Freeze the encoders; keep in each cache only what the last validation contained."""
        for encoder in self.encoders.values():
            encoder.freeze_and_rotate_cache(device)

    def embed(
        self, arguments: dict[str, Any], device: torch.device, is_training: bool = False
    ) -> dict[str, Any]:
        """Return the arguments with dictionaries of embeddings for audio, without ``lengths``."""
        embedded = dict(arguments)
        embedded.pop("lengths", None)
        sides = [side for side in SIDES if arguments.get(side) is not None]
        for side in sides:
            embedded[side] = {}
        for name, encoder in self.encoders.items():
            of_encoder = encoder.embed(dict(arguments), device, is_training)
            for side in sides:
                embedded[side][name] = of_encoder[side]
        return embedded


def freeze_encoders(
    encoder: Any, sample_rate: int | None, dtype: torch.dtype | None
) -> FrozenEncoder | FrozenEncoders:
    """Return one frozen encoder, or those of a dictionary from names to encoders."""
    if not isinstance(encoder, Mapping):
        return FrozenEncoder(encoder, sample_rate, dtype)
    if not encoder or not all(isinstance(name, str) for name in encoder):
        raise ValueError(
            "Expected `encoder` to be an encoder or a dictionary of them by name, but got"
            f" {encoder!r}."
        )
    frozen_encoders: dict[str, FrozenEncoder] = {}
    for name, value in encoder.items():
        frozen_encoders[name] = FrozenEncoder(value, sample_rate, dtype)
    return FrozenEncoders(frozen_encoders)


class FrozenEncoder:
    """An encoder without gradients, with its embeddings of the last validation's originals."""

    def __init__(
        self, encoder: Any, sample_rate: int | None = None, dtype: torch.dtype | None = None
    ) -> None:
        from vpmetrics.audio import as_encoder

        self.encoder = as_encoder(encoder, sample_rate)
        self.dtype = dtype
        # By the content of the audio: of this validation, and of the one before.
        self._cache: dict[bytes, Tensor] = {}
        self._last_cache: dict[bytes, Tensor] = {}
        self._has_warned = False

    def check_is_untrained(self, module_weights: Iterable[nn.Parameter]) -> None:
        """Raise if the module trains a weight of the encoder."""
        trained_ids = {id(weight) for weight in module_weights if weight.requires_grad}
        if any(id(weight) in trained_ids for weight in self.encoder.parameters()):
            raise ValueError(
                "Expected `encoder` to be an attacker of its own, but the module trains its"
                " weights. Freeze them in the module, or pass a copy."
            )

    def freeze_and_rotate_cache(self, device: torch.device) -> None:
        """Freeze the encoder; keep in the cache only what the last validation contained."""
        self.encoder.to(device).eval().requires_grad_(False)
        self._last_cache = self._cache
        self._cache = {}

    def embed(
        self, arguments: dict[str, Any], device: torch.device, is_training: bool = False
    ) -> dict[str, Any]:
        """Return the arguments with embeddings for audio, and without ``lengths``."""
        lengths = arguments.pop("lengths", None)
        for side in SIDES:
            if arguments.get(side) is None:
                continue
            rows = self._split_rows(side, arguments[side], lengths)
            if side == "original" and not is_training:
                arguments[side] = self._encode_cached(rows, device)
            else:
                arguments[side] = self._encode_rows(rows, device)
        return arguments

    def _split_rows(self, side: str, audio: Any, lengths: Any) -> list[Tensor]:
        """Return one tensor per utterance, without padding."""
        if isinstance(audio, Sequence) and audio and all(isinstance(row, Tensor) for row in audio):
            return list(audio)
        if not isinstance(audio, Tensor):
            raise TypeError(
                f"Expected `{side}` to be a tensor (B, ..., T) or a list of tensors, because an"
                f" `encoder` was given, but got {type(audio).__name__}."
            )
        if lengths is None:
            self._check_padding(side, audio)
            return list(audio)
        got = type(lengths).__name__
        is_valid = False
        if isinstance(lengths, Tensor):
            got = f"{lengths.dtype} {tuple(lengths.shape)}"
            is_valid = not lengths.is_floating_point() and lengths.shape == audio.shape[:1]
        if not is_valid:
            raise ValueError(
                f"Expected `lengths` to be integers of shape ({len(audio)},), but got {got}."
            )
        counts: list[int] = lengths.tolist()
        if not all(0 < count <= audio.shape[-1] for count in counts):
            raise ValueError(
                f"Expected `lengths` to be from 1 to {audio.shape[-1]}, but got {min(counts)} to"
                f" {max(counts)}."
            )
        return [row[..., :count] for row, count in zip(audio, counts, strict=True)]

    def _encode_cached(self, rows: list[Tensor], device: torch.device) -> Tensor:
        keys = [_hash_audio(row) for row in rows]
        if all(key in self._last_cache for key in keys):
            embeddings = torch.stack([self._last_cache[key] for key in keys])
        else:
            embeddings = self._encode_rows(rows, device)
        # Copies: a view would keep the activation it was cut from alive.
        self._cache.update(zip(keys, embeddings.clone(), strict=True))
        return embeddings

    def _encode_rows(self, rows: list[Tensor], device: torch.device) -> Tensor:
        audio = []
        for row in rows:
            is_mono = row.dim() == 2 and len(row) == 1
            audio.append(row.to(device).squeeze(0) if is_mono else row.to(device))
        has_autocast = self.dtype is not None
        with torch.no_grad(), torch.autocast(device.type, dtype=self.dtype, enabled=has_autocast):
            if audio[0].dim() > 1:  # spectrograms or other features; the encoder interprets them
                embeddings: Tensor = self.encoder(torch.stack(audio))
            else:
                lengths = torch.tensor([len(row) for row in audio], device=device)
                embeddings = self.encoder(pad_sequence(audio, batch_first=True), lengths)
        return embeddings.to(device)

    def _check_padding(self, side: str, audio: Tensor) -> None:
        """Raise if original rows end in zeros; warn if protected rows do, which may be silence."""
        if audio.dim() < 2 or not audio.numel():
            return
        samples = audio.shape[-1]
        is_silent = (audio.reshape(len(audio), -1, samples) == 0).all(1)
        zeros = int(is_silent.flip(1).long().cumprod(1).sum(1).max())
        if zeros <= max(1, _SILENT_PERCENT * samples // 100):
            return
        message = (
            f"Expected `{side}` to hold whole utterances, but a row ends in {zeros} zeros of"
            f" {samples}. An encoder embeds padding as speech. Return a list of tensors, each as"
            " long as its utterance, or lengths by `keys={..., 'lengths': ...}`."
        )
        if side == "original":
            raise ValueError(message)
        if not self._has_warned:
            rank_zero_warn(message, UserWarning)
            self._has_warned = True


def _hash_audio(audio: Tensor) -> bytes:
    """Return a hash of the content of a waveform."""
    content = audio.detach().cpu().contiguous().view(torch.uint8).numpy().data
    return blake2b(content).digest()
