"""Expected numbers, computed once by exact means and kept as files.

None of them comes from this package.

Score sets: PAV on whole numbers, equal scores pooled first, 40-digit arithmetic after it; good to
1e-9. LLRs and prior log-odds are natural-log, ``l_w`` is base 10, ``d_ece``, ``cllr`` and ECE are
in bits. The published numbers are those of the ZEBRA toolkit's own example and result table.
"""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

_ARRAYS = np.load(Path(__file__).with_name("golden.npz"))
_SCALARS = json.loads(Path(__file__).with_name("golden.json").read_text(encoding="utf-8"))

SCORE_SETS = tuple(_SCALARS["score_sets"])
EMBEDDING_SETS = tuple(_SCALARS["embedding_sets"])
TRANSFER_SETS = tuple(_SCALARS["transfer_sets"])
CONDITIONS = ("OO", "OP", "PP")
PRIOR_LOG_ODDS, PRIOR_ENTROPY = _ARRAYS["prior_log_odds"], _ARRAYS["ece_prior"]
ZEBRA_TAGS = tuple((l_w, letter) for l_w, letter in _SCALARS["published"]["zebra_tags"])


class ScoreSet(NamedTuple):
    """Trials, targets first, and what is expected of them: scalars and arrays under one name each.

    ``ece_min`` and ``ece_act`` are at ``PRIOR_LOG_ODDS``; ``llr_pav`` and ``llr_lap`` (Laplace's
    rule), one per trial, are there for small sets only. ``d_sys_sum`` is linkability, NaN where it
    is undefined.
    """

    preds: np.ndarray
    target: np.ndarray
    expected: dict


class EmbeddingSet(NamedTuple):
    """Embeddings, and what is expected of them by ``similarity``.

    That is the matrices, ``d_diag``, ``deid`` and ``gvd``, for "geometric" and "sigmoid".
    """

    original: np.ndarray
    protected: np.ndarray
    speakers: np.ndarray
    expected: dict


class TransferSet(NamedTuple):
    """Trials of two runs, and what calibrating on the fit run gives by ``calibration``.

    Which is "linear" or "isotonic".
    """

    preds: np.ndarray
    target: np.ndarray
    fit_preds: np.ndarray
    fit_target: np.ndarray
    expected: dict


def _trials(name, prefix=""):
    tar, non = _ARRAYS[f"{name}__{prefix}tar"], _ARRAYS[f"{name}__{prefix}non"]
    return np.r_[tar, non], np.r_[np.ones(len(tar), dtype=int), np.zeros(len(non), dtype=int)]


def score_set(name):
    expected = {
        key: float(v) if isinstance(v, str) else v
        for key, v in _SCALARS["score_sets"][name].items()
    }
    for key in ("ece_min", "ece_act", "llr_pav", "llr_lap"):
        if f"{name}__{key}" in _ARRAYS:
            expected[key] = _ARRAYS[f"{name}__{key}"]
    return ScoreSet(*_trials(name), expected)


def embedding_set(name):
    expected = {
        similarity: {**scalars, **{c: _ARRAYS[f"{name}__{similarity}_{c}"] for c in CONDITIONS}}
        for similarity, scalars in _SCALARS["embedding_sets"][name].items()
    }
    return EmbeddingSet(*(_ARRAYS[f"{name}__{key}"] for key in ("O", "P", "spk")), expected)


def transfer_set(name):
    return TransferSet(
        *_trials(name, "eval_"), *_trials(name, "fit_"), _SCALARS["transfer_sets"][name]
    )


def zebra_example():
    """The toolkit's example.

    Prior log-odds, prior ECE and minimum ECE, and the two numbers published for them.
    """
    arrays = {key: _ARRAYS[f"zebra_example__{key}"] for key in ("plo", "ece_prior", "ece_min")}
    return {**arrays, **_SCALARS["published"]["zebra_example"]}
