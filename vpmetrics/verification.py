"""Costs and error rates of speaker verification.

Cllr, minimum Cllr, equal error rate, linkability.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vpmetrics._base.privacy_metric import ClassOrInstanceValue, PrivacyMetric, States
from vpmetrics._base.score_metric import (
    TRIAL_STATES,
    ScoreMetric,
    add_trial_intervals,
    empty_trials,
    pack_trials,
)
from vpmetrics._scores.measures import (
    cllr_costs_and_sizes,
    cllr_from_sums,
    eer_of_steps,
    linkability_of_trials,
    min_cllr_of_steps,
    tpr_at_fpr_of_steps,
)
from vpmetrics._scores.score_counts import CountedScores, StepsOfBothSigns
from vpmetrics._util.dtypes import wide_dtype, widen
from vpmetrics._util.validation import collect_warnings, reject_options
from vpmetrics.functional.verification import linkability, rate_key, resolve_rates

_NO_BINS = "four sums are all that is kept, so there is nothing to bin"


class MinCllr(ScoreMetric):
    """The least Cllr that an increasing map of the scores can reach.

    That of their PAV log-likelihood ratios.

    As input to ``forward`` and ``update`` the metric accepts ``preds``, scores of any shape and
    scale, higher = more alike, and ``target`` of the same shape, 1 = same speaker. As output of
    ``compute`` it returns a scalar in bits, from 0 (speakers fully separated) to 1 (perfect
    privacy).

    Args:
        thresholds: None is exact; a number of bins or a tensor of edges keeps two histograms in
            constant memory.
        score_range: Range of a number of bins; learnt when left out.
        bandwidth: Width of the smooth surrogate's kernel in standard deviations of the scores; None
            is exact.
        validate_args: Whether NaN and labels other than 0 and 1 raise; forces a GPU sync per
            update.
        intervals: Confidence level, such as 0.95; ``update`` needs ``speakers``, and ``compute``
            returns ``min_cllr``, ``min_cllr_low`` and ``min_cllr_high``.
        kwargs: Those of :class:`torchmetrics.Metric`.

    Example:
        >>> metric = MinCllr()
        >>> metric(torch.tensor([0.0, 1.0, 2.0, 3.0]), torch.tensor([0, 1, 0, 1]))
        tensor(0.5000)
    """

    measure = "min_cllr"
    formula = staticmethod(min_cllr_of_steps)
    higher_is_better: bool = True
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0


class EqualErrorRate(ScoreMetric):
    """Error rate where misses and false alarms are equal, on the convex hull of the ROC.

    As input to ``forward`` and ``update`` the metric accepts ``preds``, scores of any shape and
    scale, higher = more alike, and ``target`` of the same shape, 1 = same speaker. As output of
    ``compute`` it returns a scalar in [0, 0.5], 0.5 = perfect privacy. The rate without the hull,
    which challenges rank by and which is never lower, is
    :func:`vpmetrics.functional.raw_equal_error_rate`.

    Args:
        thresholds: None is exact; a number of bins or a tensor of edges keeps two histograms in
            constant memory.
        score_range: Range of a number of bins; learnt when left out.
        bandwidth: Width of the smooth surrogate's kernel in standard deviations of the scores; None
            is exact.
        validate_args: Whether NaN and labels other than 0 and 1 raise; forces a GPU sync per
            update.
        intervals: Confidence level, such as 0.95; ``update`` needs ``speakers``, and ``compute``
            returns ``eer``, ``eer_low`` and ``eer_high``.
        kwargs: Those of :class:`torchmetrics.Metric`.

    Example:
        >>> metric = EqualErrorRate()
        >>> metric(torch.tensor([0.0, 1.0, 2.0, 3.0]), torch.tensor([0, 1, 0, 1]))
        tensor(0.2500)
    """

    measure = "eer"
    formula = staticmethod(eer_of_steps)
    higher_is_better: bool = True
    plot_lower_bound = 0.0
    plot_upper_bound = 0.5


class Linkability(ScoreMetric):
    """Global linkability of Gómez-Barrero et al. (2018).

    See :func:`vpmetrics.functional.linkability`.

    As input to ``forward`` and ``update`` the metric accepts ``preds``, scores of any shape and
    scale, higher = more alike, and ``target`` of the same shape, 1 = same speaker. As output of
    ``compute`` it returns a scalar in [0, 1], 0 = nothing can be linked; NaN with fewer than ten
    targets.

    Args:
        thresholds: None is exact; a number of bins or a tensor of edges keeps two histograms of
            scores.
        score_range: Range of a number of bins; learnt when left out.
        validate_args: Whether NaN and labels other than 0 and 1 raise; forces a GPU sync per
            update.
        intervals: Confidence level, such as 0.95; ``update`` needs ``speakers``, and ``compute``
            returns ``linkability``, ``linkability_low`` and ``linkability_high``, all with the bins
            of all trials.
        kwargs: Those of :class:`torchmetrics.Metric`.

    Example:
        >>> metric = Linkability()
        >>> metric(
        ...     torch.cat([torch.arange(20.0), torch.arange(10.0, 30.0)]), torch.arange(40) >= 20
        ... )
        tensor(0.3750)
    """

    measure = "linkability"
    higher_is_better: bool = False
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    def __init__(
        self,
        thresholds: int | Tensor | None = None,
        score_range: tuple[float, float] | None = None,
        validate_args: bool = True,
        intervals: float | None = None,
        **kwargs: Any,
    ) -> None:
        reject_options(self, kwargs, {"bandwidth": "the bins of a histogram have no gradient"})
        super().__init__(
            thresholds, score_range, validate_args=validate_args, intervals=intervals, **kwargs
        )

    def _compute_value(self, states: States) -> Tensor:
        if self.keeps_scores:
            return linkability(states["scores"], states["is_target"], validate_args=False)
        edges = self._edges(states)
        counts = states["bin_counts"]
        edges = widen(edges)
        # A bin stands for one score, its middle; an outer bin for its edge.
        middles = torch.cat([edges[:1], (edges[1:] + edges[:-1]) / 2, edges[-1:]])
        middles = torch.where(counts[:, -1].sum() > 0, torch.nan, middles)
        return linkability_of_trials(CountedScores(middles, counts[:, :-1])).to(torch.float32)

    def error_bound(self) -> Tensor:
        """Return NaN for bins, whose error has no known bound.

        0 where the scores themselves are kept.
        """
        return torch.full((), 0.0 if self.keeps_scores else torch.nan, device=self.device)


class Cllr(PrivacyMetric):
    """Cost of taking scores as natural-log likelihood ratios.

    See :func:`vpmetrics.functional.cllr`.

    As input to ``forward`` and ``update`` the metric accepts ``preds``, log-likelihood ratios of
    any shape, and ``target`` of the same shape, 1 = same speaker. As output of ``compute`` it
    returns a scalar in bits: 0 at best for the attacker, 1 without information, more where the
    scores mislead. The state is four sums; intervals also keep the scores.

    Args:
        validate_args: Whether NaN and labels other than 0 and 1 raise; forces a GPU sync per
            update.
        intervals: Confidence level, such as 0.95; ``update`` needs ``speakers``, and ``compute``
            returns ``cllr``, ``cllr_low`` and ``cllr_high``.
        kwargs: Those of :class:`torchmetrics.Metric`.

    Example:
        >>> metric = Cllr()
        >>> metric(torch.tensor([0.0, 1.0, 2.0, 3.0]), torch.tensor([0, 1, 0, 1]))
        tensor(1.1476)
    """

    # Values gathered from other ranks have no gradient.
    is_differentiable = ClassOrInstanceValue(True, lambda metric: not metric.dist_sync_on_step)
    measure = "cllr"
    higher_is_better: bool = True
    plot_lower_bound: float = 0.0
    cllr_costs: Tensor
    cllr_trials: Tensor
    saw_float64: Tensor

    def __init__(
        self, validate_args: bool = True, intervals: float | None = None, **kwargs: Any
    ) -> None:
        reasons = {
            "thresholds": _NO_BINS,
            "score_range": _NO_BINS,
            "bandwidth": "the value is smooth as it is",
        }
        reject_options(self, kwargs, reasons)
        super().__init__(validate_args=validate_args, intervals=intervals, **kwargs)
        for name in TRIAL_STATES if intervals is not None else ():
            self.add_state(name, default=[], dist_reduce_fx="cat")
        wide = wide_dtype(self.device)
        self.add_state("cllr_costs", default=torch.zeros(2, dtype=wide), dist_reduce_fx="sum")
        self.add_state(
            "cllr_trials", default=torch.zeros(2, dtype=torch.long), dist_reduce_fx="sum"
        )
        self.add_state(
            "saw_float64", default=torch.zeros((), dtype=torch.uint8), dist_reduce_fx="max"
        )

    def update(
        self, preds: Tensor, target: Tensor, speakers: Sequence[Tensor] | None = None
    ) -> None:
        """Accumulate a batch of trials.

        ``speakers``, of the enrolment side and of the test side, for ``intervals``.
        """
        self._store(self._pack_batch(preds, target, speakers, validate_values=self.validate_args))

    def _pack_batch(
        self,
        preds: Tensor,
        target: Tensor,
        speakers: Sequence[Tensor] | None = None,
        validate_values: bool = False,
    ) -> dict[str, Tensor]:
        trials = pack_trials(self, preds, target, speakers, validate_values)
        costs, sizes = cllr_costs_and_sizes(trials["scores"], trials["is_target"])
        is_float64 = trials["scores"].dtype == torch.float64
        states = trials if self.intervals is not None else {}
        states |= {"cllr_costs": costs, "cllr_trials": sizes}
        states["saw_float64"] = torch.full_like(self.saw_float64, int(is_float64))
        return states

    def _empty_states(self) -> dict[str, Tensor]:
        return empty_trials(self.device)

    def _compute_from(self, states: States) -> Any:
        with collect_warnings():
            value = cllr_from_sums(states["cllr_costs"], states["cllr_trials"])
            value = value if states["saw_float64"] else value.float()
            if self.intervals is None:
                return value
            return add_trial_intervals(value, states, self.measure, self.intervals)


class TPRAtFPR(ScoreMetric):
    r"""Share of target trials above the threshold that a given share of non-target trials exceeds.

    .. math::
        \mathrm{TPR}(f) = P(s_\mathrm{tar} > t_f), \quad P(s_\mathrm{non} > t_f) = f

    A low false-positive rate is where an attacker with many candidates works; the equal error rate
    does not see it.

    As input to ``forward`` and ``update`` the metric accepts ``preds``, scores in any shape and on
    any scale, and ``target``, 1 = same speaker. As output of ``compute`` the metric returns a
    dictionary ``tpr_at_1e-2``, ...; perfect privacy is the rate itself. Tied scores are one step of
    the ROC, linear in between. NaN where fewer than ten non-targets exceed the threshold.

    Args:
        fpr: False-positive rates.
        thresholds: None is exact; a number of bins or a tensor of edges keeps two histograms in
            constant memory.
        score_range: Range of a number of bins; learnt when left out.
        validate_args: Whether NaN and labels other than 0 and 1 raise; forces a GPU sync per
            update.
        kwargs: Those of :class:`torchmetrics.Metric`.

    Example:
        >>> metric = TPRAtFPR(fpr=(0.1,))
        >>> metric(
        ...     torch.cat([torch.arange(100.0), torch.arange(50.0, 150.0)]),
        ...     torch.arange(200) >= 100,
        ... )
        {'tpr_at_1e-1': tensor(0.6000)}
    """

    higher_is_better: bool = False
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    def __init__(
        self,
        fpr: Sequence[float] = (0.01, 0.001),
        thresholds: int | Tensor | None = None,
        score_range: tuple[float, float] | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        reject_options(self, kwargs, {"bandwidth": "a rate at a threshold has no gradient"})
        super().__init__(thresholds, score_range, validate_args=validate_args, **kwargs)
        self.fpr = resolve_rates(fpr)

    def _compute_value_of_steps(
        self, steps: StepsOfBothSigns, dtype: torch.dtype
    ) -> dict[str, Tensor]:
        return {
            rate_key(rate): tpr_at_fpr_of_steps(steps.ascending, rate).to(dtype)
            for rate in self.fpr
        }
