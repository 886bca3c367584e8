r"""The base of all score metrics: they store the scores, or two histograms of constant size.

Bins are given (edges, or a number of them over a range) or learnt. A learnt range is
:math:`[-2^k, 2^k)`: when a score falls outside, :math:`k` grows and neighbouring bins are added up,
so histograms can be merged, without a GPU sync.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from vpmetrics._base.privacy_metric import ClassOrInstanceValue, PrivacyMetric, States
from vpmetrics._scores.condition_scores import collect_trial_scores
from vpmetrics._scores.jackknife import (
    add_intervals,
    count_trial_replicates,
    split_labels_into_groups,
)
from vpmetrics._scores.score_counts import Steps, StepsOfBothSigns, count_by_bin, count_by_score
from vpmetrics._util.arrays import as_floating_tensor, as_integer_tensor
from vpmetrics._util.dtypes import at_least_float32, result_dtype, wide_dtype, widen
from vpmetrics._util.validation import (
    check_speakers_of_trials,
    check_thresholds,
    check_trials,
    collect_warnings,
)
from vpmetrics._utterances.utterances import count_values, encode_column

TRIAL_STATES = ("scores", "is_target", "trial_speakers")
_LOWEST_EXPONENT = -1000  # of a range that has held no score yet


class ScoreMetric(PrivacyMetric):
    """A metric of trials that stores the scores, or two histograms of them.

    With ``intervals`` it stores every score and both speakers of each trial. A subclass has a
    ``formula``, or defines ``_compute_value_of_steps``.
    """

    # ``Running`` must refuse: it adds histograms of learnt ranges as if they were of one range.
    full_state_update = ClassOrInstanceValue(  # type: ignore[assignment]
        False, lambda metric: metric._learns_range
    )
    measure: ClassVar[str] = ""  # key of a scalar value in a dictionary
    formula: Callable[[Steps], Tensor]  # of a metric of the steps of ascending scores alone

    scores: list[Tensor]
    is_target: list[Tensor]
    trial_speakers: list[Tensor]
    bin_edges: Tensor  # given
    bin_exponent: Tensor  # k of a learnt range
    # (2, E + 2) of non-targets and targets between E edges; of NaN scores in the last column
    bin_counts: Tensor

    def __init__(
        self,
        thresholds: int | Tensor | None = None,
        score_range: tuple[float, float] | None = None,
        bandwidth: float | None = None,
        validate_args: bool = True,
        intervals: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(bandwidth, validate_args, intervals, **kwargs)
        check_thresholds(thresholds, score_range)
        for name, value in (("bandwidth", bandwidth), ("intervals", intervals)):
            if thresholds is not None and value is not None:
                raise ValueError(
                    f"Expected `{name}` only without `thresholds`: histograms do not keep single"
                    " trials."
                )
        self.thresholds = thresholds
        self.keeps_scores = thresholds is None
        """Whether the scores themselves are stored, not histograms of them."""
        self.score_range = score_range
        self._learns_range = isinstance(thresholds, int) and score_range is None
        if thresholds is None:
            names = TRIAL_STATES if intervals is not None else TRIAL_STATES[:2]
            for name in names:
                self.add_state(name, default=[], dist_reduce_fx="cat")
            return
        if isinstance(thresholds, int) and self._learns_range:
            num_edges = 2 * ((thresholds + 1) // 2) + 1
            self.add_state(
                "bin_exponent", default=torch.tensor(_LOWEST_EXPONENT), dist_reduce_fx="max"
            )
        else:
            edges = _resolve_edges(thresholds, score_range)
            num_edges = len(edges)
            self.add_state("bin_edges", default=edges, dist_reduce_fx="max")
        self.add_state(
            "bin_counts", default=torch.zeros(2, num_edges + 2).long(), dist_reduce_fx="sum"
        )

    def update(self, preds: Tensor, target: Tensor, speakers: Sequence[Any] | None = None) -> None:
        """Accumulate a batch of trials, as tensors, NumPy arrays or lists.

        Args:
            preds: Scores in any shape and on any scale, higher = more alike.
            target: 1 (same speaker) or 0 (different), boolean or integer, of the same shape.
            speakers: Speakers of the enrolment side and of the test side, two tensors of integers
                of that shape or two lists of strings; for ``intervals``.
        """
        self._store(self._pack_batch(preds, target, speakers, validate_values=self.validate_args))

    def _pack_batch(
        self,
        preds: Tensor,
        target: Tensor,
        speakers: Sequence[Any] | None = None,
        validate_values: bool = False,
    ) -> dict[str, Tensor]:
        trials = pack_trials(self, preds, target, speakers, validate_values)
        if self.keeps_scores:
            return trials
        return self._count_bins(trials["scores"].detach(), trials["is_target"])

    def _empty_states(self) -> dict[str, Tensor]:
        return empty_trials(self.device)

    def _count_bins(self, scores: Tensor, is_target: Tensor) -> dict[str, Tensor]:
        """Return the histograms of a batch."""
        states: dict[str, Tensor] = {}
        if self._learns_range:
            exponent = torch.full_like(self.bin_exponent, _LOWEST_EXPONENT)
            if len(scores):
                exponent = _find_exponent(scores)
            states["bin_exponent"] = exponent
            bins = self._find_bins_of_learnt_range(scores, exponent)
        else:
            states["bin_edges"] = self.bin_edges
            bins = torch.bucketize(scores, self.bin_edges.to(scores.dtype), right=True)
        num_columns = self.bin_counts.shape[1]
        slots = torch.where(scores.isnan(), num_columns - 1, bins) + is_target * num_columns
        states["bin_counts"] = count_values(slots, 2 * num_columns).view(2, num_columns)
        return states

    def _find_bins_of_learnt_range(self, scores: Tensor, exponent: Tensor) -> Tensor:
        """Return the bin of each score in the range ``[-2**exponent, 2**exponent)``."""
        finite = torch.where(scores.isfinite(), widen(scores), 0)
        half = self.bin_counts.shape[1] // 2 - 1
        # Several times as fast as a search among the edges.
        position = finite * torch.exp2(-exponent.to(finite.dtype)) * half
        inner_bin = position.floor().clamp(max=half - 1).nan_to_num().long() + half + 1
        outer_bin = (scores > 0) * (2 * half + 1)
        return torch.where(scores.isinf(), outer_bin, inner_bin)

    def _compute_from(self, states: States) -> Any:
        with collect_warnings():
            value = self._compute_value(states)
            if self.intervals is None or "trial_speakers" not in states:
                return value
            return add_trial_intervals(value, states, self.measure, self.intervals)

    def _compute_value(self, states: States) -> Any:
        """Return the value of states, without intervals."""
        if self.keeps_scores:
            dtype = result_dtype(states["scores"])
        else:
            dtype = torch.float32
        return self._compute_value_of_steps(self._count_trials(states), dtype)

    def error_bound(self) -> Any:
        """Return by how much each value may be off at most because scores were binned.

        Within a bin the order of the scores is lost. ``compute`` takes them as tied, which shows
        the least; here they are also taken as perfectly separated, which shows the most. The bound
        is the difference of both values. It is 0 where the scores themselves are kept.

        Returns:
            What ``compute`` returns without intervals, a bound for each value; none for ``tag``,
            which is a category.
        """
        with self._gather_states():
            states = self._joined_states()
            tied_steps = self._count_trials(states)
            separated_steps = self._count_trials(states, is_separated=True)
            tied = self._compute_value_of_steps(tied_steps, torch.float64)
            separated = self._compute_value_of_steps(separated_steps, torch.float64)
        # Separation raises a disclosure and lowers an error rate.
        if not isinstance(separated, dict):
            return (separated - tied).abs()
        bounds: dict[str, Tensor] = {}
        for key, value in separated.items():
            if key != "tag":
                bounds[key] = (value - tied[key]).abs()
        return bounds

    def _compute_value_of_steps(self, steps: StepsOfBothSigns, dtype: torch.dtype) -> Any:
        return self.formula(steps.ascending).to(dtype)

    def _count_trials(self, states: States, is_separated: bool = False) -> StepsOfBothSigns:
        if self.keeps_scores:
            return count_by_score(
                states["scores"],
                states["is_target"],
                validate_args=False,
                bandwidth=self.bandwidth,
            )
        counts = states["bin_counts"]
        nontargets, targets = counts[:, :-1]
        has_nan = counts[:, -1].sum() > 0
        return count_by_bin(self._edges(states), targets, nontargets, has_nan, is_separated)

    def _edges(self, states: States) -> Tensor:
        """Return the edges of the bins, given or learnt, ``(E,)``."""
        if not self._learns_range:
            return states["bin_edges"]
        half = (states["bin_counts"].shape[1] - 3) // 2
        steps = torch.arange(-half, half + 1, device=self.device, dtype=wide_dtype(self.device))
        # The power of two of the widest range would overflow, and that of the narrowest underflow
        # in float32: it is halved, kept from 0, and doubled.
        half_power = torch.exp2(states["bin_exponent"].to(steps.dtype) - 1)
        half_power = half_power.clamp(min=torch.finfo(steps.dtype).tiny)
        return steps / half * half_power * 2

    def _align_totals(self, own: States, incoming: States) -> tuple[States, States]:
        if self.keeps_scores:
            return own, incoming
        if self._learns_range:
            exponent = torch.maximum(own["bin_exponent"], incoming["bin_exponent"])
            return _widen_range(own, exponent), _widen_range(incoming, exponent)
        # The edges of a batch are this metric's own, and a comparison would be a GPU sync.
        if incoming["bin_edges"].data_ptr() != own["bin_edges"].data_ptr():
            _check_same_bins([own["bin_edges"], incoming["bin_edges"]], "in both metrics")
        return own, incoming

    def _align_states(self, gather: Callable[[Tensor], Sequence[Tensor]]) -> None:
        super()._align_states(gather)
        if self._learns_range:
            exponent = torch.stack(list(gather(self.bin_exponent))).amax()
            own = {"bin_exponent": self.bin_exponent, "bin_counts": self.bin_counts}
            for name, state in _widen_range(own, exponent).items():
                setattr(self, name, state)
        elif not self.keeps_scores:
            _check_same_bins(gather(self.bin_edges), "on all processes")


def pack_trials(
    metric: PrivacyMetric,
    preds: Any,
    target: Any,
    speakers: Sequence[Any] | None,
    validate_values: bool,
) -> dict[str, Tensor]:
    """Return validated trials as states, :data:`TRIAL_STATES`; speakers only for intervals."""
    preds = as_floating_tensor("preds", preds, metric.device)
    target = as_integer_tensor("target", target, metric.device)
    check_trials(preds, target, validate_values)
    states = {
        "scores": at_least_float32(preds.flatten()),
        "is_target": target.detach().flatten().bool(),
    }
    if speakers is None:
        if metric.intervals is not None:
            raise ValueError(
                "Expected `speakers` with `intervals`: speakers are left out, not trials."
            )
        return states
    if isinstance(speakers, (list, tuple)) and len(speakers) == 2:
        speakers = [encode_column("speakers", side).to(preds.device) for side in speakers]
    check_speakers_of_trials(speakers, target, validate_values)
    if metric.intervals is not None:
        speakers_of_sides = [side.detach().flatten().long() for side in speakers]
        states["trial_speakers"] = torch.stack(speakers_of_sides, dim=1)
    return states


def empty_trials(device: torch.device) -> dict[str, Tensor]:
    """Return the states of no trial."""
    return {
        "scores": torch.empty(0, device=device),
        "is_target": torch.empty(0, dtype=torch.bool, device=device),
        "trial_speakers": torch.empty(0, 2, dtype=torch.int64, device=device),
    }


def add_trial_intervals(
    value: Any, states: States, measure: str, confidence: float
) -> dict[str, Tensor]:
    """Return the value as a dictionary, with the ends of the interval of each number."""
    value_of_key = value if isinstance(value, dict) else {measure: value}
    scores = states["scores"].detach()
    is_target = states["is_target"]
    labels, speaker_index = states["trial_speakers"].T.unique(return_inverse=True)
    groups = split_labels_into_groups(labels)
    scored = collect_trial_scores(scores, is_target)
    jackknife = None
    if scored.is_defined:
        replicates = count_trial_replicates(
            scored, at_least_float32(scores), is_target, speaker_index, groups
        )
        jackknife = replicates.make_jackknife()
    with_ends = add_intervals(value_of_key, jackknife, confidence)
    return {key: number.to(result_dtype(scores)) for key, number in with_ends.items()}


def _find_exponent(scores: Tensor) -> Tensor:
    """Return the least exponent of a range that holds all finite scores."""
    largest = torch.where(scores.isfinite(), widen(scores), 0).abs().amax()
    return torch.where(largest > 0, torch.frexp(largest).exponent, _LOWEST_EXPONENT).long()


def _widen_range(states: States, exponent: Tensor) -> dict[str, Tensor]:
    """Return the histograms of a learnt range for a wider one."""
    counts = _coarsen_bins(states["bin_counts"], exponent - states["bin_exponent"])
    return {"bin_exponent": exponent, "bin_counts": counts}


def _check_same_bins(edges: Sequence[Tensor], where: str) -> None:
    own, *edges_of_others = edges
    for incoming in edges_of_others:
        if not torch.equal(own, incoming):
            got = " and ".join(f"{float(e[0]):g} to {float(e[-1]):g}" for e in (own, incoming))
            raise ValueError(
                f"Expected the same edges of bins {where}, but got {len(own)} edges from {got}."
            )


def _resolve_edges(thresholds: int | Tensor, score_range: tuple[float, float] | None) -> Tensor:
    """Return given edges as they are, or those of a number of bins over a range."""
    if isinstance(thresholds, Tensor):
        return widen(thresholds.detach()).clone()
    low, high = score_range or (-1.0, 1.0)
    edges = torch.linspace(low, high, thresholds + 1, dtype=torch.float64)
    if not bool((edges.diff() > 0).all()):
        raise ValueError(
            f"Expected `score_range` to be wide enough for {thresholds} bins, but got"
            f" {score_range}."
        )
    return edges


def _coarsen_bins(counts: Tensor, shift: Tensor) -> Tensor:
    """Return the counts of a learnt range ``(2, C)`` for a range ``2**shift`` times as wide.

    The columns are one of minus infinity, ``half`` bins below 0, ``half`` bins from 0 on, one of
    infinity and one of NaN. The number of bins stays, so ``2**shift`` adjacent ones become one.
    """
    num_columns = counts.shape[-1]
    half = (num_columns - 3) // 2
    column = torch.arange(num_columns, device=counts.device)
    # Bins below score 0 are -half, ..., -1, those above it 0, ..., half - 1. A shift of bits to the
    # right divides by 2**shift and rounds down, also negative numbers. A shift by 64 is undefined.
    bin_from_zero = column - half - 1
    wide_bin_from_zero = bin_from_zero >> shift.clamp(max=62)
    column_of_wide_bin = wide_bin_from_zero + half + 1
    is_bin = (column > 0) & (column < num_columns - 2)
    new_column = torch.where(is_bin, column_of_wide_bin, column)
    return torch.zeros_like(counts).index_add(-1, new_column, counts)
