"""Voice similarity matrices, de-identification and voice distinctiveness."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from vpmetrics._base.embedding_metric import EmbeddingMetric
from vpmetrics._scores.registry import add_interval_keys
from vpmetrics._scores.scorers import Scoring, resolve_scoring
from vpmetrics._scores.speaker_similarity import (
    SIMILARITIES,
    SimilarityMatrices,
    compute_dominance,
    compute_matrices,
    deid_of_dominances,
    diagonal_and_row_means,
    gvd_of_dominances,
)
from vpmetrics._util.validation import check_choice, reject_options
from vpmetrics._utterances.conditions import CONDITIONS, WITHOUT_SESSIONS
from vpmetrics._utterances.utterances import EvaluationData
from vpmetrics.report.embedding_report import report_embeddings
from vpmetrics.report.parts import ReportSettings


class VoiceSimilarityMatrix(EmbeddingMetric):
    r"""Compute how similar the voices of all pairs of speakers are.

    Within and between original and protected speech.

    .. math::
        \mathrm{Sim}(i, j) = \prod_{l \in \mathcal{L}_{ij}} \sigma(l)^{1 / |\mathcal{L}_{ij}|}

    over the log-likelihood ratios of the utterances of speaker i against those of speaker j, PAV
    under Laplace's rule (Noé et al., 2022).

    As input to ``forward`` and ``update`` the metric accepts embeddings ``original (B, D)``,
    ``protected (B, D)`` and ``speakers (B,)``. As output of ``compute`` it returns the named tuple
    ``(oo, op, pp, speakers)``: matrices ``(S, S)`` in [0, 1], speakers ascending, NaN where two
    speakers have no trial. ``plot()`` draws them.

    Args:
        similarity: ``"geometric"``, the geometric mean of the posteriors (2022), or ``"sigmoid"``,
            the posterior of the mean log-likelihood ratio (2020).
        scoring: ``"cosine"``, ``"dot"``, ``"euclidean"``, a fitted :class:`vpmetrics.scoring.PLDA`,
            or any callable from embeddings ``(A, D)`` and ``(B, D)`` to scores ``(A, B)``, higher =
            more alike.
        bandwidth: Width of the smooth surrogate's kernel in standard deviations of the scores; None
            is exact.
        validate_args: Whether values are validated for NaN and infinity; forces a GPU sync per
            update.
        kwargs: Those of :class:`torchmetrics.Metric`.

    Example:
        >>> import torch
        >>> metric = VoiceSimilarityMatrix()
        >>> original = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
        >>> metric.update(original, original.flip(1), torch.tensor([3, 3, 8, 8]))
        >>> metric.compute().op
        tensor([[0.5263, 0.5263],
                [0.5263, 0.5263]])
    """

    plot_lower_bound: float = 0.0
    plot_upper_bound: float = 1.0

    def __init__(
        self,
        similarity: str = "geometric",
        scoring: Scoring = "cosine",
        bandwidth: float | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        reject_options(self, kwargs, {"intervals": "there is one for numbers, not for matrices"})
        super().__init__(bandwidth, validate_args, **kwargs)
        check_choice("similarity", similarity, SIMILARITIES)
        resolve_scoring(scoring)
        self.similarity = similarity
        self.scoring = scoring

    def _compute_value(self, data: EvaluationData) -> SimilarityMatrices:
        return compute_matrices(
            data, self.similarity, resolve_scoring(self.scoring), self.bandwidth
        )

    def plot(
        self,
        val: SimilarityMatrices | Sequence[SimilarityMatrices] | None = None,
        ax: Any = None,
        names: Sequence[str] | None = None,
        zoo: str | None = None,
    ) -> tuple[Any, Any]:
        """Draw the quadrants OO, OP, PO, PP as one heat map, or a zoo plot.

        The heat map has a fixed scale, the zoo plot is of a condition.

        Args:
            val: What ``compute`` or ``forward`` returned, or a sequence of such, the last of which
                is drawn; ``compute()`` when left out.
            ax: Matplotlib axes to draw on; new ones when left out.
            names: Names of the speakers, in ascending order of their labels.
            zoo: ``"OO"``, ``"OP"`` or ``"PP"``: draw each speaker of that condition by the
                similarity of own trials and of those with others.
        """
        from vpmetrics.plotting.speaker_plots import draw_similarity_matrices, draw_zoo

        val = self.compute() if val is None else val
        if not isinstance(val, SimilarityMatrices):
            val = val[-1]
        if zoo is None:
            return draw_similarity_matrices(val, ax, names)
        check_choice("zoo", zoo, WITHOUT_SESSIONS)
        return draw_zoo(*diagonal_and_row_means(val[WITHOUT_SESSIONS.index(zoo)]), ax, zoo, names)


class DeIdentification(EmbeddingMetric):
    r"""Compute DeID, the relative loss of diagonal dominance from OO to OP similarities.

    .. math::
        \mathrm{DeID} = 1 - \frac{D_\mathrm{diag}(M_\mathrm{OP})}{D_\mathrm{diag}(M_\mathrm{OO})}

    with the diagonal dominance of the voice similarity matrices (Noé et al., 2022, eq. 8 and 9).

    As input to ``forward`` and ``update`` the metric accepts embeddings ``original (B, D)``,
    ``protected (B, D)`` and ``speakers (B,)``. As output of ``compute`` it returns a scalar: 1.0 =
    100 %, perfect; 0 = nothing achieved; NaN with one warning where it is undefined.

    Args:
        similarity: As in :class:`VoiceSimilarityMatrix`.
        scoring: As in :class:`VoiceSimilarityMatrix`.
        bandwidth: Width of the smooth surrogate's kernel in standard deviations of the scores; None
            is exact. Training on it does not stop a fused attacker, to whom .60 of .64 bit were
            left.
        validate_args: Whether values are validated for NaN and infinity; forces a GPU sync per
            update.
        intervals: Confidence level such as 0.95, of the leave-one-speaker-out jackknife;
            ``compute`` then returns a dictionary: ``deid``, ``deid_low``, ``deid_high``.
        kwargs: Those of :class:`torchmetrics.Metric`.

    Example:
        >>> import torch
        >>> metric = DeIdentification()
        >>> original = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
        >>> protected = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
        >>> metric(original, protected, torch.tensor([3, 3, 8, 8]))
        tensor(1.)
    """

    key = "deid"
    higher_is_better: bool = True
    plot_upper_bound: float = 1.0

    def __init__(
        self,
        similarity: str = "geometric",
        scoring: Scoring = "cosine",
        bandwidth: float | None = None,
        validate_args: bool = True,
        intervals: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(bandwidth, validate_args, intervals, **kwargs)
        check_choice("similarity", similarity, SIMILARITIES)
        resolve_scoring(scoring)
        self.similarity = similarity
        self.scoring = scoring

    def _compute_value(self, data: EvaluationData) -> Tensor | dict[str, Tensor]:
        return _compute_ratio(self, data, self.key, ("OO", "OP"), deid_of_dominances)


class VoiceDistinctiveness(EmbeddingMetric):
    r"""Compute G_VD, the gain of voice distinctiveness from original to protected speech.

    .. math::
        G_\mathrm{VD} = 10 \log_{10}
        \frac{D_\mathrm{diag}(M_\mathrm{PP})}{D_\mathrm{diag}(M_\mathrm{OO})}

    with the diagonal dominance of the voice similarity matrices (Noé et al., 2022, eq. 8 and 10).

    As input to ``forward`` and ``update`` the metric accepts embeddings ``original (B, D)``,
    ``protected (B, D)`` and ``speakers (B,)``. As output of ``compute`` it returns a scalar in dB:
    0 = voices as distinct as before, below 0 a loss, -inf = all protected voices alike; NaN with
    one warning where it is undefined.

    Args:
        similarity: As in :class:`VoiceSimilarityMatrix`.
        scoring: As in :class:`VoiceSimilarityMatrix`.
        bandwidth: Width of the smooth surrogate's kernel in standard deviations of the scores; None
            is exact.
        validate_args: Whether values are validated for NaN and infinity; forces a GPU sync per
            update.
        intervals: Confidence level such as 0.95, of the leave-one-speaker-out jackknife;
            ``compute`` then returns a dictionary: ``gvd``, ``gvd_low``, ``gvd_high``.
        kwargs: Those of :class:`torchmetrics.Metric`.

    Example:
        >>> import torch
        >>> metric = VoiceDistinctiveness()
        >>> original = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
        >>> protected = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [0.6, 0.8]])
        >>> metric(original, protected, torch.tensor([3, 3, 8, 8]))
        tensor(-1.9320)
    """

    key = "gvd"
    higher_is_better: bool = True

    def __init__(
        self,
        similarity: str = "geometric",
        scoring: Scoring = "cosine",
        bandwidth: float | None = None,
        validate_args: bool = True,
        intervals: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(bandwidth, validate_args, intervals, **kwargs)
        check_choice("similarity", similarity, SIMILARITIES)
        resolve_scoring(scoring)
        self.similarity = similarity
        self.scoring = scoring

    def _compute_value(self, data: EvaluationData) -> Tensor | dict[str, Tensor]:
        return _compute_ratio(self, data, self.key, ("OO", "PP"), gvd_of_dominances)


def _compute_ratio(
    metric: DeIdentification | VoiceDistinctiveness,
    data: EvaluationData,
    key: str,
    conditions: tuple[str, ...],
    formula: Callable[[Tensor, Tensor], Tensor],
) -> Tensor | dict[str, Tensor]:
    """Return one number of the dominance in two conditions.

    With its confidence interval where a metric has one.
    """
    if metric.intervals is None:
        scorer = resolve_scoring(metric.scoring)
        dominances = []
        for name in conditions:
            condition = CONDITIONS[name]
            dominances.append(
                compute_dominance(data, condition, metric.similarity, scorer, metric.bandwidth)
            )
        return formula(*dominances)
    families = frozenset((name, "matrix") for name in conditions)
    settings = ReportSettings(
        metric.similarity, metric.scoring, families=families, intervals=metric.intervals
    )
    scalars = report_embeddings(data, settings).scalars
    return {name: scalars[name] for name in add_interval_keys([key])}
