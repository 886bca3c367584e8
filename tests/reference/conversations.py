"""Trials of conversations, from their definition: pairs of groups of utterances of one draw."""

from itertools import product

import numpy as np


def trials(groups, speakers, sessions, is_same_side, across=False):
    """Which pairs of conversations are trials, and which of these are targets.

    Two dictionaries by index pair.

    ``groups``: rows of each conversation of one draw, the same on both sides; ``speakers`` and
    ``sessions`` by row.
    """
    is_target = {}
    for (i, first), (j, second) in product(enumerate(groups), repeat=2):
        if is_same_side and i >= j:
            continue
        same_speaker = speakers[first[0]] == speakers[second[0]]
        if same_speaker and set(first) & set(second):
            continue
        if (
            same_speaker
            and across
            and {sessions[row] for row in first} & {sessions[row] for row in second}
        ):
            continue
        is_target[i, j] = bool(same_speaker)
    return is_target


def cosine_of_means(first_rows, second_rows):
    """The cosine of the means of unit rows."""
    means = []
    for rows in (first_rows, second_rows):
        unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        mean = unit.mean(0)
        means.append(mean / np.linalg.norm(mean))
    return float(means[0] @ means[1])
