"""Checks of arguments with their messages, and warnings that share one GPU sync.

Kinds, dtypes and shapes are always checked. Checks of values force a GPU sync, so they can be
switched off and read everything at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torchmetrics.utilities import rank_zero_warn

LEAST_BANDWIDTH = 1e-3  # of kernels; at 1e-5 constant speech has a gradient of NaN


def check_tensor(name: str, value: Any) -> None:
    """Raise unless the value is a tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"Expected `{name}` to be a tensor, but got {type(value).__name__}.")


def check_floating(name: str, value: Any) -> None:
    """Raise unless the value is a tensor of a floating type."""
    check_tensor(name, value)
    if not value.is_floating_point():
        raise TypeError(f"Expected `{name}` to have a floating dtype, but got {value.dtype}.")


def check_distractors(distractors: Any) -> Tensor | None:
    """Return embeddings ``(G, D)`` of speakers without tests, detached, or None.

    Raise for anything else.
    """
    if distractors is None:
        return None
    if isinstance(distractors, np.ndarray):
        distractors = torch.from_numpy(distractors)
    check_floating("distractors", distractors)
    if distractors.dim() != 2:
        raise ValueError(
            f"Expected `distractors` to have shape (G, D), but got {tuple(distractors.shape)}."
        )
    if not bool(distractors.isfinite().all()):
        raise ValueError("Expected `distractors` to be finite, but got NaN or infinity.")
    checked: Tensor = distractors.detach()
    return checked


def check_distractors_by_side(distractors: Any) -> dict[str, Tensor] | None:
    """Return embeddings ``(G, D)`` of speakers without tests by side, detached, or None.

    Raise for anything else.
    """
    if distractors is None:
        return None
    sides = ("original", "protected")
    expected = "Expected `distractors` to be a dictionary with 'original', 'protected' or both"
    if not isinstance(distractors, Mapping):
        raise TypeError(f"{expected}, but got {type(distractors).__name__}.")
    if not distractors or not set(distractors) <= set(sides):
        got = ", ".join(map(repr, distractors)) or "an empty one"
        raise ValueError(f"{expected}, but got {got}.")
    by_side: dict[str, Tensor] = {}
    for side, vectors in distractors.items():
        checked = check_distractors(vectors)
        if checked is None:
            raise TypeError(f"Expected `distractors[{side!r}]` to be a tensor, but got None.")
        by_side[side] = checked
    return by_side


def check_integers(name: str, value: Any) -> None:
    """Raise unless the value is a tensor of whole numbers."""
    check_tensor(name, value)
    if value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
        raise TypeError(f"Expected `{name}` to have an integer dtype, but got {value.dtype}.")


def check_shape(name: str, value: Tensor, expected: tuple[int, ...], because: str) -> None:
    """Raise for a tensor of another shape."""
    if tuple(value.shape) != expected:
        raise ValueError(
            f"Expected `{name}` to have shape {expected}, {because}, but got {tuple(value.shape)}."
        )


def check_same_device(first: str, a: Tensor, second: str, b: Tensor) -> None:
    """Raise for two tensors that lie on different devices."""
    if a.device != b.device:
        raise ValueError(
            f"Expected `{first}` and `{second}` to be on one device, but got {a.device} and"
            f" {b.device}."
        )


def check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Raise unless the value is one of the choices.

    True does not count as 1, nor a tensor as a number.
    """
    is_choice = any(isinstance(value, type(choice)) and value == choice for choice in choices)
    if isinstance(value, bool) or not is_choice:
        expected = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"Expected `{name}` to be one of {expected}, but got {value!r}.")


def check_flag(name: str, value: Any) -> None:
    """Raise unless the value is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"Expected `{name}` to be True or False, but got {value!r}.")


def reject_options(metric: Any, options: dict[str, Any], reasons: dict[str, str]) -> None:
    """Raise for an argument of related metrics that this metric has no use for, with the reason.

    None is accepted.
    """
    for name, reason in reasons.items():
        if options.pop(name, None) is not None:
            raise TypeError(f"{type(metric).__name__} takes no `{name}`: {reason}.")


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _raise_unless(is_valid: bool, name: str, expected: str, value: Any) -> None:
    if not is_valid:
        raise ValueError(f"Expected `{name}` to {expected}, but got {value}.")


def check_confidence(name: str, value: Any) -> None:
    """Raise unless the value is a number between 0 and 1."""
    if not _is_number(value):
        raise TypeError(f"Expected `{name}` to be a number, but got {type(value).__name__}.")
    _raise_unless(0 < value < 1, name, "lie between 0 and 1", value)


def check_nonnegative(name: str, value: Any) -> None:
    """Raise unless the value is a finite number of at least 0."""
    if not _is_number(value):
        raise TypeError(f"Expected `{name}` to be a number, but got {type(value).__name__}.")
    _raise_unless(0 <= value < math.inf, name, "be at least 0 and finite", value)


def check_positive(name: str, value: Any) -> None:
    """Raise unless the value is a finite number above 0."""
    check_nonnegative(name, value)
    _raise_unless(value > 0, name, "be above 0", value)


def check_whole_number(name: str, value: Any, least: int) -> None:
    """Raise unless the value is a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"Expected `{name}` to be a whole number, but got {value!r}.")
    _raise_unless(value >= least, name, f"be at least {least}", value)


def check_whole_numbers(sizes: Any, smallest: int, name: str = "sizes") -> None:
    """Raise unless the value is a sequence of distinct whole numbers from ``smallest`` on."""
    if (
        not isinstance(sizes, Sequence)
        or isinstance(sizes, str)
        or not all(type(size) is int for size in sizes)
    ):
        raise TypeError(f"Expected `{name}` to be a sequence of whole numbers, but got {sizes!r}.")
    if len(sizes) == 0 or min(sizes) < smallest or len(set(sizes)) < len(sizes):
        raise ValueError(
            f"Expected `{name}` to be different numbers of at least {smallest}, but got {sizes!r}."
        )


def check_bandwidth(bandwidth: Any) -> None:
    """Raise for a kernel width that is neither None nor a positive number."""
    if bandwidth is not None:
        if not _is_number(bandwidth):
            raise TypeError(
                f"Expected `bandwidth` to be a float or None, but got {type(bandwidth).__name__}."
            )
        _raise_unless(0 < bandwidth < math.inf, "bandwidth", "be positive and finite", bandwidth)
        if bandwidth < LEAST_BANDWIDTH:
            raise ValueError(
                f"Expected `bandwidth` to be at least {LEAST_BANDWIDTH:g} standard deviations of"
                f" the scores, but got {bandwidth:g}: narrower kernels round to steps without a"
                " gradient. None is exact."
            )


def check_thresholds(thresholds: Any, score_range: Any) -> None:
    """Raise unless these are None, a number of bins or ascending edges.

    A number of bins may come with its range.
    """
    if isinstance(thresholds, bool) or not (
        thresholds is None or isinstance(thresholds, (int, Tensor))
    ):
        raise TypeError(
            "Expected `thresholds` to be None, a number of bins or a tensor of edges, but got"
            f" {thresholds!r}."
        )
    if isinstance(thresholds, int) and thresholds < 2:
        raise ValueError(f"Expected `thresholds` to be at least 2 bins, but got {thresholds}.")
    if isinstance(thresholds, Tensor):
        check_floating("thresholds", thresholds)
        if thresholds.dim() != 1 or len(thresholds) == 0:
            raise ValueError(
                f"Expected `thresholds` to have shape (edges,), but got {tuple(thresholds.shape)}."
            )
        if not bool(thresholds.isfinite().all() & (thresholds.diff() > 0).all()):
            raise ValueError(
                "Expected `thresholds` to be finite and strictly ascending; outer bins are added to"
                " them."
            )
    if score_range is not None:
        if not isinstance(thresholds, int):
            raise ValueError(
                "Expected `score_range` only together with `thresholds` as a number of bins."
            )
        if not (
            isinstance(score_range, (tuple, list))
            and len(score_range) == 2
            and all(map(_is_number, score_range))
        ):
            raise TypeError(f"Expected `score_range` to be two numbers, but got {score_range!r}.")
        is_valid = -math.inf < score_range[0] < score_range[1] < math.inf
        _raise_unless(is_valid, "score_range", "be two finite ascending numbers", score_range)


def check_finite_slope(slope: Any) -> None:
    """Raise unless the slope is None or one finite number, as a float or a tensor."""
    if slope is None:
        return
    if isinstance(slope, Tensor) and slope.numel() == 1 and slope.is_floating_point():
        slope = slope.item()
    if not _is_number(slope):
        raise TypeError(f"Expected `slope` to be a number or None, but got {slope!r}.")
    _raise_unless(math.isfinite(slope), "slope", "be finite", slope)


def check_slopes(slope: Any, num_trials: int) -> None:
    """Raise unless the value is a number or a floating tensor of one slope, or of one per trial.

    Reads no values.
    """
    if not isinstance(slope, Tensor):
        check_finite_slope(slope)
        return
    check_floating("slope", slope)
    if slope.numel() not in (1, num_trials) or slope.dim() > 1:
        raise ValueError(
            f"Expected `slope` to have shape () or ({num_trials},), but got {tuple(slope.shape)}."
        )


def check_trials(preds: Any, target: Any, validate_values: bool) -> None:
    """Check kinds, dtypes, shapes and devices of scores and labels.

    With ``validate_values`` also NaN and labels.
    """
    check_floating("preds", preds)
    check_tensor("target", target)
    if target.is_floating_point() or target.is_complex():
        raise TypeError(f"Expected `target` to be boolean or integer, but got {target.dtype}.")
    check_shape("target", target, tuple(preds.shape), "the shape of `preds`")
    check_same_device("preds", preds, "target", target)
    if not validate_values or preds.numel() == 0:
        return
    # NaN shows in the extremes, which take a fraction of the time that a look at every score does.
    has_nan = preds.detach().amax().isnan()
    has_other = torch.zeros_like(has_nan)
    if target.dtype != torch.bool:
        lowest_label, highest_label = target.aminmax()
        has_other = (lowest_label < 0) | (highest_label > 1)
    is_wrong = torch.stack([has_nan, has_other]).tolist()  # one GPU sync for both
    if is_wrong[0]:
        raise ValueError(
            f"Expected `preds` to hold no NaN, but got {int(preds.isnan().sum())} of"
            f" {preds.numel()}."
        )
    if is_wrong[1]:
        odd = target[(target != 0) & (target != 1)].unique()[:5].tolist()
        raise ValueError(f"Expected `target` to hold only 0 and 1, but got {odd}.")


def check_speakers_of_trials(speakers: Any, target: Tensor, validate_values: bool) -> None:
    """Check kinds, shapes and devices of the speakers of both sides.

    With ``validate_values``, also whether ``target`` is 1 where they are the same.
    """
    if not (isinstance(speakers, Sequence) and len(speakers) == 2):
        if isinstance(speakers, Sequence):
            got = f"{len(speakers)} of them"
        else:
            got = type(speakers).__name__
        raise TypeError(
            "Expected `speakers` to be two tensors, of the enrolment and the test side, but got"
            f" {got}."
        )
    for side, column in zip(("enrolment", "test"), speakers, strict=True):
        name = f"speakers of the {side} side"
        check_integers(name, column)
        check_shape(name, column, tuple(target.shape), "the shape of `target`")
        check_same_device("target", target, name, column)
    if validate_values and (wrong := int(((speakers[0] == speakers[1]) != target.bool()).sum())):
        raise ValueError(
            "Expected `target` to be 1 where both `speakers` are the same and 0 elsewhere, but"
            f" {wrong} of {target.numel()} trials are labelled otherwise."
        )


def _check_rows(name: str, rows: Any, shape: str) -> None:
    check_floating(name, rows)
    if rows.dim() != 2:
        raise ValueError(f"Expected `{name}` to have shape {shape}, but got {tuple(rows.shape)}.")
    if rows.shape[1] == 0:
        raise ValueError(
            f"Expected `{name}` to have at least one dimension, but got shape {tuple(rows.shape)}."
        )


def _check_integer_column(name: str, column: Any, rows_name: str, rows: Tensor) -> None:
    """Raise unless the value is an integer tensor with one entry per row."""
    check_integers(name, column)
    check_shape(name, column, (len(rows),), f"one per row of `{rows_name}`")
    check_same_device(rows_name, rows, name, column)


def check_embeddings(
    original: Any,
    protected: Any,
    speakers: Any,
    is_reference: Any = None,
    integer_columns: Mapping[str, Any] | None = None,
    width: int | None = None,
) -> None:
    """Check kinds, dtypes, shapes and devices of a batch of utterances and ``integer_columns``."""
    sides = {"original": original, "protected": protected}
    passed_sides = {name: side for name, side in sides.items() if side is not None}
    if not passed_sides:
        raise ValueError("Expected `original` or `protected`, but got neither.")
    for name, side in passed_sides.items():
        _check_rows(name, side, "(B, D)")
        if width is not None and side.shape[1] != width:
            raise ValueError(
                f"Expected `{name}` to be {width} wide, as earlier batches, but got"
                f" {side.shape[1]}."
            )
    rows_name = next(iter(passed_sides))
    rows = passed_sides[rows_name]
    for name, side in passed_sides.items():
        if name != rows_name:
            check_shape(name, side, tuple(rows.shape), f"the shape of `{rows_name}`")
            check_same_device(rows_name, rows, name, side)
    for name, column in ({"speakers": speakers} | dict(integer_columns or {})).items():
        if column is not None or name == "speakers":
            _check_integer_column(name, column, rows_name, rows)
    if is_reference is not None:
        check_tensor("is_reference", is_reference)
        if is_reference.dtype != torch.bool:
            raise TypeError(f"Expected `is_reference` to be boolean, but got {is_reference.dtype}.")
        _check_integer_column("is_reference", is_reference.byte(), rows_name, rows)


def check_finite_embeddings(original: Tensor | None, protected: Tensor | None) -> None:
    """Raise for NaN and infinite embeddings; one GPU sync for both sides."""
    sides = {
        name: side
        for name, side in (("original", original), ("protected", protected))
        if side is not None
    }
    bad = torch.stack([side.isfinite().logical_not().any() for side in sides.values()]).tolist()
    for (name, side), is_bad in zip(sides.items(), bad, strict=True):
        if is_bad:
            rows = int(side.isfinite().logical_not().any(1).sum())
            raise ValueError(
                f"Expected `{name}` to hold finite numbers, but {rows} of {len(side)} rows hold NaN"
                " or infinity."
            )


def check_recordings(utterances: Tensor, **columns: Tensor | None) -> None:
    """Raise for a recording with two speakers, or two values of another column; one GPU sync."""
    passed_columns = {name: column for name, column in columns.items() if column is not None}
    order = utterances.argsort()
    is_repeated = utterances[order].diff() == 0
    conflicts = [is_repeated & (column[order].diff() != 0) for column in passed_columns.values()]
    has_conflict = torch.stack([conflict.any() for conflict in conflicts]).tolist()
    for (name, column), conflict, is_wrong in zip(
        passed_columns.items(), conflicts, has_conflict, strict=True
    ):
        if is_wrong:
            row_pair = order[int(conflict.nonzero()[0]) :][:2]
            recording = int(utterances[row_pair[0]])
            value, conflicting_value = column[row_pair].tolist()
            raise ValueError(
                f"Expected rows with the same `utterances` to have the same `{name}`, but got"
                f" {value} and {conflicting_value} for recording {recording}."
            )


def check_utterances(name: str, rows: Any, speakers_name: str, speakers: Any) -> None:
    """Check kinds and shapes of utterances and their speakers."""
    _check_rows(name, rows, "(rows, dimensions)")
    _check_integer_column(speakers_name, speakers, name, rows)


def check_histogram_shape(histogram: Any) -> None:
    """Check kind and shape of a rank histogram, not its values."""
    check_tensor("histogram", histogram)
    if histogram.is_complex() or histogram.dtype == torch.bool:
        raise TypeError(
            f"Expected `histogram` to hold real counts or shares, but got {histogram.dtype}."
        )
    if histogram.ndim == 0:
        raise ValueError(
            "Expected `histogram` to have shape (..., N), one entry per rank, but got ()."
        )


def check_identification_shapes(scores: Any, target_index: Any) -> None:
    """Check kinds and shapes of identification trials, not their values."""
    check_floating("scores", scores)
    if scores.ndim != 2:
        raise ValueError(
            f"Expected `scores` to have shape (trials, references), but got {tuple(scores.shape)}."
        )
    if scores.shape[1] == 0:
        raise ValueError(
            "Expected `scores` to have at least one reference, but got shape"
            f" {tuple(scores.shape)}."
        )
    _check_integer_column("target_index", target_index, "scores", scores)


class _DeferredWarning(NamedTuple):
    """A warning that depends on a number on the GPU.

    The numbers of all warnings are read in one GPU sync.
    """

    condition: Tensor | None  # None: warn in any case
    text: Callable[[float], str | None]  # None: do not warn
    # explains a NaN; only the first such warning is shown, with what the data lack
    is_undefined: bool


@dataclass
class _WarningCollection:
    """The warnings of a ``with`` statement, and a function that finds what its data lack."""

    warnings: list[_DeferredWarning] = field(default_factory=list)
    find_cause: Callable[[], str | None] = lambda: None


_collection: ContextVar[_WarningCollection | None] = ContextVar("_collection", default=None)


def warn_undefined(reason: str, condition: Tensor | None = None) -> None:
    """Warn of the reason for a NaN if ``condition`` holds, on rank 0.

    Within :func:`collect_warnings` only the first such reason is shown.
    """
    warn_if(condition, lambda holds: reason if holds else None, is_undefined=True)


def explain_undefined(find_cause: Callable[[], str | None]) -> None:
    """Add the text of ``find_cause()`` to the reason for a NaN, if there is one.

    It works within collect_warnings.
    """
    collection = _collection.get()
    if collection is not None:
        collection.find_cause = find_cause


def warn_first(reasons: Mapping[str, Tensor]) -> None:
    """Warn of the first reason whose condition holds."""
    with collect_warnings():
        for reason, condition in reasons.items():
            warn_undefined(reason, condition)


def warn_if(
    number: Tensor | None, text: Callable[[float], str | None], is_undefined: bool = False
) -> None:
    """Warn on rank 0 with ``text(number)``, unless that is None; see :class:`_DeferredWarning`."""
    if torch.compiler.is_compiling():  # a graph cannot warn
        return
    collection = _collection.get() or _WarningCollection()
    collection.warnings.append(_DeferredWarning(number, text, is_undefined))
    if _collection.get() is None:
        _emit_warnings(collection)


def _emit_warnings(collection: _WarningCollection) -> None:
    """Read all numbers in one sync, then warn; of several reasons for NaN only the first."""
    conditions = [
        warning.condition.detach()
        for warning in collection.warnings
        if warning.condition is not None
    ]
    values = iter(torch.stack(conditions).tolist() if conditions else ())
    is_explained = False
    for warning in collection.warnings:
        value = 1 if warning.condition is None else next(values)
        text = warning.text(value)
        if text is None or (is_explained and warning.is_undefined):
            continue
        if warning.is_undefined:
            is_explained = True
            text = " ".join(filter(None, (text, collection.find_cause(), "The result is NaN.")))
        rank_zero_warn(text, UserWarning, stacklevel=4)


@contextmanager
def collect_warnings() -> Iterator[None]:
    """Emit the warnings of the body at its end, with one GPU sync.

    Of several reasons for NaN it emits only the first.
    """
    if torch.compiler.is_compiling() or _collection.get() is not None:
        yield
        return
    collection = _WarningCollection()
    token = _collection.set(collection)
    try:
        yield
    finally:
        _collection.reset(token)
    _emit_warnings(collection)


@contextmanager
def suppress_warnings() -> Iterator[None]:
    """Suppress warnings, for example for a figure over ever smaller subsets."""
    token = _collection.set(_WarningCollection())
    try:
        yield
    finally:
        _collection.reset(token)
