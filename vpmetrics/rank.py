"""Similarity rank disclosure."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vpmetrics._base.embedding_metric import EmbeddingMetric
from vpmetrics._identification.identification import (
    add_padded_histograms,
    identify_condition,
    mean_over_groups,
)
from vpmetrics._scores.jackknife import add_intervals, group_speakers
from vpmetrics._scores.scorers import Scoring, resolve_scoring
from vpmetrics._util.validation import check_choice, check_distractors
from vpmetrics._utterances.conditions import look_up_condition
from vpmetrics._utterances.utterances import EvaluationData
from vpmetrics.functional.rank import MODELS, rank_disclosure
from vpmetrics.report.identification_scalars import jackknife_scalars


class SimilarityRankDisclosure(EmbeddingMetric):
    r"""Compute the bits that the rank of the true speaker among all speakers discloses.

    Chandra et al., 2026.

    .. math::
        \mathrm{MaxD} = \max_j \log_2 (N \gamma_j), \qquad
        \mathrm{MeanD} = \sum_j \gamma_j \log_2 (N \gamma_j)

    with :math:`\gamma_j` the share of inputs whose own speaker comes j-th of the N references.
    There is one reference per speaker, the mean of the speaker's utterances.

    As input to ``forward`` and ``update`` the metric accepts embeddings ``original (B, D)``,
    ``protected (B, D)`` and ``speakers (B,)``. With ``is_reference (B,)`` the utterances marked are
    the references and the others the inputs; without, every utterance is an input and is left out
    of its own speaker's mean.

    As output of ``compute`` the metric returns a dictionary: ``max_d`` and ``mean_d`` in bits, 0 =
    nothing disclosed, :math:`\log_2 N` = everything; ``id_rate``, the share of inputs whose speaker
    comes first; ``rank_spread``, the share of ranks that are likelier than by chance. NaN with one
    warning for fewer than two speakers, or where no input has a reference of its speaker.

    The empirical values of few inputs are too high: with N = 40 and 800 inputs that disclose
    nothing, MaxD is 0.60 bit and MeanD 0.04; the beta-binomial model gives 0.18 and 0.00. Where the
    inputs of a speaker err alike, as under one pseudo-voice, MeanD is 0.07. Intervals account for
    it, since they leave out speakers and not inputs.

    Args:
        model: ``"empirical"``, the observed shares, or ``"beta_binomial"``, a distribution fitted
            to them that keeps the first.
        condition: ``"PP"``, protected references and inputs; ``"OP"``, original references and
            protected inputs; ``"OO"``, both original.
        scoring: ``"cosine"``, ``"dot"``, ``"euclidean"``, a fitted :class:`vpmetrics.scoring.PLDA`,
            or any callable from embeddings ``(A, D)`` and ``(B, D)`` to scores ``(A, B)``, higher =
            more alike.
        bandwidth: Width, in standard deviations of an input's scores, over which two scores are
            compared softly, so that ranks have a gradient; None counts ranks.
        validate_args: Whether values are validated for NaN and infinity; forces a GPU sync per
            update.
        intervals: Confidence level such as 0.95; adds ``<key>_low``, ``<key>_high`` of all but
            ``rank_spread``, from the leave-one-speaker-out jackknife.
        distractors: Embeddings ``(G, D)`` of further enrolled speakers, a row each, whom no input
            is of.
        kwargs: Those of :class:`torchmetrics.Metric`.

    Example:
        >>> import torch
        >>> metric = SimilarityRankDisclosure()
        >>> protected = torch.tensor([[1.0, 0.1], [0.9, 0.0], [0.1, 1.0], [0.7, 0.6]])
        >>> metric.update(protected=protected, speakers=torch.tensor([4, 4, 9, 9]))
        >>> metric.compute()
        {'max_d': tensor(0.5850), 'mean_d': tensor(0.1887), 'id_rate': tensor(0.7500),
         'rank_spread': tensor(0.5000)}
    """

    higher_is_better: bool = False
    plot_lower_bound: float = 0.0

    def __init__(
        self,
        model: str = "empirical",
        condition: str = "PP",
        scoring: Scoring = "cosine",
        bandwidth: float | None = None,
        validate_args: bool = True,
        intervals: float | None = None,
        distractors: Tensor | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            bandwidth=bandwidth, validate_args=validate_args, intervals=intervals, **kwargs
        )
        check_choice("model", model, MODELS)
        look_up_condition(condition)
        resolve_scoring(scoring)
        self.model = model
        self.condition = condition
        self.scoring = scoring
        self.distractors = check_distractors(distractors)

    def _compute_value(self, data: EvaluationData) -> dict[str, Tensor]:
        groups = None if self.intervals is None else group_speakers(data)
        found_of_group = identify_condition(
            data,
            look_up_condition(self.condition),
            self.scoring,
            has_bits=False,
            bandwidth=self.bandwidth,
            distractors=self.distractors,
            groups=groups,
        )
        histograms = [found.histogram for found in found_of_group]
        num_inputs = torch.stack([histogram.detach().sum() for histogram in histograms])
        disclosures = [
            rank_disclosure(histogram, self.model, validate_args=False) for histogram in histograms
        ]
        values = mean_over_groups(disclosures, num_inputs)
        if self.intervals is None or groups is None:
            return values
        jackknife = jackknife_scalars(found_of_group, groups, self.model)
        return add_intervals(values, jackknife, self.intervals)

    def plot(self, val: Any = None, ax: Any = None, label: str = "") -> tuple[Any, Any]:
        """Draw the rank histogram on logarithmic axes.

        With the uniform line and the beta-binomial fit.

        ``val``, a value of ``compute`` or a sequence of them over epochs, is drawn instead. Several
        systems may share the axes ``ax``, each with its ``label``.
        """
        if val is not None:
            return super().plot(val, ax)
        from vpmetrics.plotting.identification_plots import draw_rank_histogram

        with self._gather_states():
            data = self._collect_data()
            condition = look_up_condition(self.condition)
            found_of_group = identify_condition(
                data,
                condition,
                self.scoring,
                has_bits=False,
                bandwidth=self.bandwidth,
                distractors=self.distractors,
            )
        histogram = add_padded_histograms([found.histogram for found in found_of_group])
        return draw_rank_histogram(histogram, rank_disclosure(histogram, self.model), ax, label)
