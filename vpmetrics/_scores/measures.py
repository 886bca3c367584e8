"""The registry of score measures, and the formulas behind them.

Each is a function of counted trials.

Report, confidence intervals, binned metrics, tables, JSON schema, help and tests derive from
:data:`SCORE_MEASURES`. To add one, write its formula and its entry here, its slow reference and its
test.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from vpmetrics._scores.score_counts import (
    CountedScores,
    OrderedScores,
    ScoresAndSteps,
    Steps,
    StepsOfBothSigns,
    d_ece_term,
    weighted_mean,
)
from vpmetrics._util.dtypes import widen
from vpmetrics._util.scalar import (
    BITS,
    FULL_DISCLOSURE,
    LOG10,
    PERCENT,
    PLAIN,
    TAG,
    TAG_BOUNDS,
    TAG_LETTERS,
    Scalar,
)
from vpmetrics._util.validation import warn_first

_PROFILE_CELLS = 1 << 14  # cells of the score axis that curves over the prior use
# of the linkability measure, as in its reference implementation
_TARGETS_PER_BIN = 10
_MOST_BINS = 100
_FEWEST_OTHERS = 1000  # non-targets from which it is known who is found among 100 people
_FEWEST_FALSE_ALARMS = 10  # non-targets above a threshold that make its false-alarm rate known


def llr_disclosure(llr: Tensor, is_target: Tensor) -> Tensor:
    """Return D_ECE in bits of trials with given log-likelihood ratios.

    NaN where a class is missing.
    """
    return (d_ece_term(llr[is_target]).mean() + d_ece_term(-llr[~is_target]).mean()) / (
        2 * math.log(2)
    )


def tag_number(l_w: Tensor) -> Tensor:
    """Return the category of a worst case, 0 to 6; -1 for NaN."""
    has_passed = torch.stack([l_w > 0, *(l_w >= bound for bound in TAG_BOUNDS)])
    return has_passed.sum(0).masked_fill(l_w.isnan(), -1)


def entropy_of_costs(target_cost: Tensor, nontarget_cost: Tensor, prior_log_odds: Tensor) -> Tensor:
    """Return the mean costs of both classes, in nats, weighted by the prior and added, in bits."""
    return (
        prior_log_odds.sigmoid() * target_cost + (-prior_log_odds).sigmoid() * nontarget_cost
    ) / math.log(2)


def minimum_cross_entropy(steps: Steps, prior_log_odds: Tensor) -> Tensor:
    """Return the empirical cross-entropy of PAV-calibrated scores, in bits.

    Priors ``(P,)`` give values ``(..., P)``.
    """
    llr = steps.pools.llr.unsqueeze(-2)
    targets = steps.pools.targets.unsqueeze(-2)
    nontargets = steps.pools.nontargets.unsqueeze(-2)
    odds = prior_log_odds[:, None]
    target_cost = weighted_mean(targets, softplus(-llr - odds))
    nontarget_cost = weighted_mean(nontargets, softplus(llr + odds))
    return entropy_of_costs(target_cost, nontarget_cost, prior_log_odds)


def actual_cross_entropy(values: Tensor, counts: Tensor, prior_log_odds: Tensor) -> Tensor:
    """Return the empirical cross-entropy in bits at each prior ``(P,)``.

    ``values`` ``(V,)``: log-likelihood ratios, which occur ``counts`` ``(2, V)`` times. To limit
    memory, neighbours among many values are merged.
    """
    values_of_class = widen(values).expand(2, -1)
    counts = widen(counts)
    finite = values_of_class[0][values_of_class[0].isfinite()]
    if len(values) > _PROFILE_CELLS and len(finite):
        low, high = finite.aminmax()
        span = (high - low).clamp(min=torch.finfo(low.dtype).tiny)
        position = (values_of_class[0] - low) * ((_PROFILE_CELLS - 1) / span)
        # Infinite values have cells of their own.
        cell = position.nan_to_num().clamp(-1, _PROFILE_CELLS).floor().long() + 1
        sums = (counts * values_of_class).masked_fill(counts <= 0, 0)
        empty = sums.new_zeros(2, _PROFILE_CELLS + 2)
        counts = empty.index_add(1, cell, counts)
        values_of_class = empty.index_add(1, cell, sums) / counts
    odds = prior_log_odds[:, None]
    target_cost = weighted_mean(counts[1], softplus(-values_of_class[1] - odds))
    nontarget_cost = weighted_mean(counts[0], softplus(values_of_class[0] + odds))
    return entropy_of_costs(target_cost, nontarget_cost, prior_log_odds)


def prior_entropy(prior_log_odds: Tensor) -> Tensor:
    """Return the binary entropy in bits at natural-log odds (eq. 12)."""
    return entropy_of_costs(softplus(-prior_log_odds), softplus(prior_log_odds), prior_log_odds)


def cllr_from_sums(costs: Tensor, trials: Tensor) -> Tensor:
    """Return Cllr in bits from costs in nats and numbers of trials.

    Both have shape ``(2, ...)``: non-targets, then targets.
    """
    value = (costs / trials).sum(0) / (2 * math.log(2))
    warn_first(
        {
            "There are no trials of one kind.": (trials == 0).any(),
            "Some scores are NaN.": value.isnan().any(),
        }
    )
    return value


def cllr_costs_and_sizes(preds: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return costs in nats and numbers of trials, ``(2,)`` each: non-targets, targets.

    They add up over batches.
    """
    scores = widen(preds.flatten())
    is_target = target.flatten().bool()
    is_of_class = is_target == torch.arange(2, device=scores.device).unsqueeze(1)
    return CountedScores(scores, is_of_class).cllr_costs_and_sizes()


def min_cllr_of_steps(steps: Steps) -> Tensor:
    """Return Cllr of PAV-calibrated scores in bits."""
    # 1 but for rounding
    return minimum_cross_entropy(steps, steps.targets.new_zeros(1))[..., 0].clamp(max=1)


def eer_of_steps(steps: Steps) -> Tensor:
    """Return the equal error rate of the ROC's convex hull."""
    # The threshold passes one PAV pool after the other, from accepting all to accepting none.
    counts = torch.stack([steps.pools.targets, steps.pools.nontargets])
    below = pad(counts.cumsum(-1), (1, 0))
    miss, rejected = below / below[..., -1:]
    return _value_at_crossing(miss - (1 - rejected), miss)


def _value_at_crossing(excess: Tensor, value: Tensor) -> Tensor:
    """Return the value, linear between points, where an ascending excess passes 0."""
    after = (excess >= 0).to(torch.uint8).argmax(-1, keepdim=True).clamp(min=1)
    before = after - 1
    excess_before = excess.gather(-1, before)
    excess_after = excess.gather(-1, after)
    share = excess_before / (excess_before - excess_after)
    return torch.lerp(value.gather(-1, before), value.gather(-1, after), share).squeeze(-1)


def missed_and_rejected_counts(steps: Steps) -> tuple[Tensor, Tensor]:
    """Return numbers of missed targets and rejected non-targets.

    Thresholds ascend; each number has shape ``(..., 2 S + 1)``.
    """
    tied = steps.nontargets if steps.tied is None else steps.tied
    # Two parts of every step, and a threshold after each: what ties with the targets, and what lies
    # above them.
    targets = torch.stack([steps.targets, torch.zeros_like(tied)], dim=-1).flatten(-2)
    nontargets = torch.stack([tied, steps.nontargets - tied], dim=-1).flatten(-2)
    missed = pad(targets.cumsum(-1), (1, 0))
    rejected = pad(nontargets.cumsum(-1), (1, 0))
    return missed, rejected


def raw_eer_of_steps(steps: Steps) -> Tensor:
    """Return the equal error rate of the ROC itself, not of its convex hull."""
    missed, rejected = missed_and_rejected_counts(steps)
    num_targets = missed[..., -1:]
    num_nontargets = rejected[..., -1:]
    # Miss rate less false-alarm rate, times both numbers of trials: integers, so that equal rates
    # are equal.
    excess = missed * num_nontargets - (num_nontargets - rejected) * num_targets
    return _value_at_crossing(excess, missed) / missed[..., -1]


def min_dcf_of_steps(
    steps: Steps, p_target: float = 0.01, c_miss: float = 1.0, c_fa: float = 1.0
) -> Tensor:
    """Return the minimum detection cost.

    It is normalised so that 1 is the cost of deciding without scores.
    """
    # The best threshold lies between two steps: elsewhere it accepts non-targets but no more
    # targets.
    missed = pad(steps.targets.cumsum(-1), (1, 0))
    rejected = pad(steps.nontargets.cumsum(-1), (1, 0))
    num_targets = missed[..., -1:]
    num_nontargets = rejected[..., -1:]
    false_alarm = (num_nontargets - rejected) / num_nontargets
    miss_weight = c_miss * p_target
    false_alarm_weight = c_fa * (1 - p_target)
    cost = miss_weight * missed / num_targets + false_alarm_weight * false_alarm
    return (cost / min(miss_weight, false_alarm_weight)).amin(-1)


def tpr_at_fpr_of_steps(steps: Steps, fpr: float) -> Tensor:
    """Return the share of targets above the threshold of a false-positive rate.

    A share ``fpr`` of the non-targets lies above that threshold.

    Linear between the points of the ROC at a tie; NaN where fewer than ten non-targets exceed the
    threshold.
    """
    missed, rejected = missed_and_rejected_counts(steps)
    num_nontargets = rejected[..., -1:]
    wanted = (1 - fpr) * num_nontargets
    # The lowest threshold that rejects enough. A threshold right above a step of non-targets misses
    # no target there.
    rejects_enough = rejected >= wanted * (1 - 1e-12)
    after = rejects_enough.to(torch.uint8).argmax(-1, keepdim=True).clamp(min=1)
    before = after - 1
    rejected_before = rejected.gather(-1, before)
    num_between = rejected.gather(-1, after) - rejected_before
    share = ((wanted - rejected_before) / num_between).clamp(0, 1).nan_to_num(1)
    num_missed = torch.lerp(missed.gather(-1, before), missed.gather(-1, after), share)
    rate = 1 - num_missed.squeeze(-1) / missed[..., -1]
    is_unknown = fpr * num_nontargets.squeeze(-1) < _FEWEST_FALSE_ALARMS
    return rate.masked_fill(is_unknown, torch.nan)


def choose_sign(steps_of_both_signs: StepsOfBothSigns) -> int:
    """Return 0 where scores disclose at least as much as negated scores, else 1.

    0 where neither is defined.
    """
    return int(steps_of_both_signs.disclosures.detach().nan_to_num(-torch.inf).argmax())


def found_among_of_steps(steps: Steps, people: int = 100) -> Tensor:
    r"""Return how often the speaker of a target trial is found among ``people`` people.

    The others are drawn at random.

    With L the share of non-targets below the score of a target, and G the share below it or equal,
    a target counts

    .. math::
        \int_0^1 (L + (G - L) u)^{n - 1} du = \frac{G^n - L^n}{n (G - L)}

    the probability that none of n - 1 others, drawn at random, exceeds it, where ties are resolved
    by lot. NaN for fewer than 1,000 non-targets.
    """
    tied = steps.nontargets if steps.tied is None else steps.tied
    up_to_step = steps.nontargets.cumsum(-1)
    num_nontargets = up_to_step[..., -1:]
    below = up_to_step - steps.nontargets
    share_below = (below / num_nontargets).clamp(0, 1)
    share_up_to = ((below + tied) / num_nontargets).clamp(0, 1)
    width = share_up_to - share_below
    is_tied = width > 0
    mean_of_ties = (share_up_to**people - share_below**people) / (
        people * width.masked_fill(~is_tied, 1)
    )
    chance_of_target = torch.where(is_tied, mean_of_ties, share_below ** (people - 1))
    rate = weighted_mean(steps.targets, chance_of_target)
    return rate.masked_fill(num_nontargets.squeeze(-1) < _FEWEST_OTHERS, torch.nan)


def linkability_edges(trials: OrderedScores | CountedScores) -> Tensor:
    """Return the edges between the equal bins of the linkability measure, ``(99,)``.

    Infinite beyond the last bin.

    NaN and one warning where it is undefined. Replicates use the bins of all trials, which come
    first.
    """
    low, high = trials.span_or_nan()
    num_nontargets, num_targets = widen(trials.class_sizes).view(2, -1)[:, 0]
    num_bins = (num_targets / _TARGETS_PER_BIN).floor().clamp(max=_MOST_BINS)
    has_few = (num_bins == 0) | (num_nontargets == 0)
    span = high - low
    is_flat = ~((span > 0) & (span < torch.inf))  # also where it is NaN
    warn_first(
        {
            f"Linkability needs {_TARGETS_PER_BIN} target trials and a non-target trial.": has_few,
            "Linkability needs scores that are finite and not all the same.": is_flat,
        }
    )
    number_of_edge = torch.arange(1, _MOST_BINS, device=low.device)
    edges = low + span / num_bins.to(low.dtype) * number_of_edge
    edges = edges.masked_fill(number_of_edge >= num_bins, torch.inf)
    return torch.where(has_few | is_flat, torch.nan, edges)


def linkability_of_bins(counts: Tensor) -> Tensor:
    """Return D_sys from numbers of non-targets and targets per bin, ``(2, ..., B)``."""
    q, p = (counts / counts.sum(-1, keepdim=True)).unbind()
    # 2 r / (1 + r) - 1 for the ratio r = p / q, without dividing by a q that may be 0.
    value: Tensor = (p * ((p - q) / (p + q)).masked_fill(p <= q, 0)).sum(dim=-1)
    return value


def linkability_of_trials(
    trials: OrderedScores | CountedScores, edges: Tensor | None = None
) -> Tensor:
    """Return D_sys of trials; NaN and one warning where it is undefined."""
    if edges is None:
        edges = linkability_edges(trials)
    linkability = linkability_of_bins(widen(trials.count_between(edges)))
    return torch.where(edges[0].isnan(), torch.nan, linkability)


@dataclass(frozen=True)
class ScoreMeasure(Scalar):
    """A number of the scores of one condition.

    :class:`Scalar` with the function that computes it.
    """

    function: Callable[[ScoresAndSteps], Tensor] = field(kw_only=True)

    def __call__(self, scored: ScoresAndSteps) -> Tensor:
        """Return the measure of trials; ``(R,)`` for counts of R replicates."""
        return self.function(scored)


_LETTERS = ", ".join(
    f"{letter} from {bound:g}" for letter, bound in zip(TAG_LETTERS[2:], TAG_BOUNDS, strict=True)
)
_DISCLOSURE = (0.0, FULL_DISCLOSURE)
_SHARE = (0.0, 1.0)

SCORE_MEASURES = {
    measure.key: measure
    for measure in (
        ScoreMeasure(
            "d_ece",
            "D_ECE",
            BITS,
            "low",
            "expected disclosure: what the scores tell an attacker on average "
            "over all priors; 0 is perfect privacy, 0.721 full disclosure",
            _DISCLOSURE,
            is_bias_corrected=True,
            function=lambda scored: scored.counts.disclosures[0],
        ),
        ScoreMeasure(
            "d_ece_reversed",
            "D_ECE reversed",
            BITS,
            "low",
            "the same for an attacker who turns the sign of "
            "the scores; clearly above 0, the protection can be undone that way",
            _DISCLOSURE,
            is_bias_corrected=True,
            function=lambda scored: scored.counts.disclosures[1],
        ),
        ScoreMeasure(
            "l_w",
            "l_w",
            LOG10,
            "low",
            "worst case: the strongest evidence of a single trial, as a power of "
            "ten of the odds; grows with the number of trials",
            has_interval=False,
            function=lambda scored: scored.counts.ascending.worst_evidence,
        ),
        ScoreMeasure(
            "tag",
            "tag",
            TAG,
            "low",
            f"category of the worst case of a cosine: 0 is perfect privacy, A below 1, {_LETTERS}",
            has_interval=False,
            function=lambda scored: tag_number(scored.counts.ascending.worst_evidence),
        ),
        ScoreMeasure(
            "min_cllr",
            "min Cllr",
            BITS,
            "high",
            "cost of the best-calibrated scores; 1 is perfect privacy",
            _SHARE,
            is_bias_corrected=True,
            function=lambda scored: min_cllr_of_steps(scored.counts.ascending),
        ),
        ScoreMeasure(
            "cllr",
            "Cllr",
            BITS,
            "high",
            "cost of taking the scores as log-likelihood ratios",
            (0.0, math.inf),
            function=lambda scored: cllr_from_sums(*scored.trials.cllr_costs_and_sizes()),
        ),
        ScoreMeasure(
            "eer",
            "EER",
            PERCENT,
            "high",
            "equal error rate on the convex hull of the ROC: misses as "
            "frequent as false alarms; 50 is perfect privacy",
            (0.0, 0.5),
            function=lambda scored: eer_of_steps(scored.counts.ascending),
        ),
        ScoreMeasure(
            "raw_eer",
            "raw EER",
            PERCENT,
            "high",
            "equal error rate without the convex hull, as the "
            "challenges rank; never below the EER of the hull",
            _SHARE,
            function=lambda scored: raw_eer_of_steps(scored.counts.ascending),
        ),
        ScoreMeasure(
            "min_dcf",
            "min DCF",
            PLAIN,
            "high",
            "minimum detection cost at a prior of 0.01; 1 is perfect privacy",
            _SHARE,
            function=lambda scored: min_dcf_of_steps(scored.counts.ascending),
        ),
        ScoreMeasure(
            "tpr_at_1e-2",
            "TPR at FPR 1 %",
            PERCENT,
            "low",
            "share of target trials found at a threshold "
            "that 1 % of non-target trials exceed; 1 is perfect privacy",
            _SHARE,
            needs_many_trials=True,
            function=lambda scored: tpr_at_fpr_of_steps(scored.counts.ascending, 1e-2),
        ),
        ScoreMeasure(
            "tpr_at_1e-3",
            "TPR at FPR 0.1 %",
            PERCENT,
            "low",
            "share of target trials found at a threshold "
            "that 0.1 % of non-target trials exceed; 0.1 is perfect privacy",
            _SHARE,
            needs_many_trials=True,
            function=lambda scored: tpr_at_fpr_of_steps(scored.counts.ascending, 1e-3),
        ),
        ScoreMeasure(
            "linkability",
            "linkability",
            PLAIN,
            "low",
            "share of what can be linked, by score "
            "(Gómez-Barrero); perfect privacy is its chance level, not 0",
            _SHARE,
            function=lambda scored: linkability_of_trials(scored.trials, scored.linkability_edges),
        ),
    )
}
