"""Texts as bytes in a tensor.

Torchmetrics gathers, merges, saves and resets it like any other state.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

_LENGTH_BYTES = 4


def encode_texts(texts: Iterable[str], device: torch.device) -> Tensor:
    """Return UTF-8 texts, each after its length in bytes, as one uint8 tensor.

    Tensors of several lists of texts can be concatenated.

    Example:
        >>> encoded = encode_texts(["Zoë", ""], torch.device("cpu"))
        >>> decode_texts(torch.cat([encoded, encoded]))
        ['Zoë', '', 'Zoë', '']
    """
    packed = bytearray()
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        packed += len(data).to_bytes(_LENGTH_BYTES, "little")
        packed += data
    if not packed:
        # nothing has to be copied to the device
        return torch.empty(0, dtype=torch.uint8, device=device)
    return torch.tensor(list(packed), dtype=torch.uint8, device=device)


def decode_texts(encoded: Tensor) -> list[str]:
    """Return the texts of a tensor that :func:`encode_texts` made."""
    packed = bytes(encoded.tolist())
    texts = []
    start = 0
    while start < len(packed):
        stop = start + _LENGTH_BYTES
        length = int.from_bytes(packed[start:stop], "little")
        start = stop + length
        texts.append(packed[stop:start].decode("utf-8", "surrogatepass"))
    return texts
