"""The canonical order: rows sorted by a hash of their numbers.

One number and one bit operation at a time.
"""

import struct

import numpy as np

BITS = 64
FACTOR = 0x9E3779B97F4A7C15  # 2**64 divided by the golden ratio


def signed(number):
    """The integer of these 64 bits, of which the highest is the sign."""
    number %= 1 << BITS
    return number - (1 << BITS) if number >> (BITS - 1) else number


def mixed(number):
    for _ in range(2):
        number = signed(number * FACTOR)
        number = signed(number ^ (number >> 32))
    return number


def row_hash(row):
    total = 0
    for column, value in enumerate(row, start=1):
        (bits,) = struct.unpack("<q", struct.pack("<d", float(value) + 0.0))
        total += mixed(signed(bits + column * FACTOR))
    return mixed(signed(total))


def set_hash(rows):
    """The hash of a set of rows, that of a speaker for example."""
    return signed(sum(mixed(row_hash(row)) for row in rows))


def canonical_order(rows, *ties):
    """Indices of the rows, sorted by their hash.

    ``ties``, other embeddings of the same rows, decide between equals.
    """
    sides = [np.asarray(side, dtype=float) for side in (rows, *ties)]
    keys = [tuple(row_hash(side[i]) for side in sides) for i in range(len(sides[0]))]
    return sorted(range(len(keys)), key=keys.__getitem__)


def places_in_groups(groups, rows, *ties):
    """The place 0, 1, ... of each row in its group, in canonical order."""
    seen, places = {}, np.zeros(len(groups), dtype=int)
    for i in canonical_order(rows, *ties):
        name = groups[i].item() if hasattr(groups[i], "item") else groups[i]
        places[i] = seen.get(name, 0)
        seen[name] = places[i] + 1
    return places
