"""Everything at once: all scalars of all conditions, each condition scored once."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from vpmetrics._checks import check_choice
from vpmetrics._conditions import ConditionScores, score_condition
from vpmetrics._embedding_state import EmbeddingMetric
from vpmetrics._precision import result_dtype
from vpmetrics._sides import Side, Sides, row_keys
from vpmetrics._tiles import TrialGrid
from vpmetrics.functional.similarity import (
    SIMILARITIES,
    SimilarityMatrices,
    de_identification,
    diagonal_dominance,
    names_of,
    normalised_relatives,
    similarity_of_condition,
    voice_distinctiveness,
)
from vpmetrics.functional.verification import (
    cllr_of_sums,
    cllr_sums_of_values,
    eer_of_steps,
    linkability_of_values,
    min_cllr_of_steps,
)
from vpmetrics.functional.zebra import disclosure_of_counts
from vpmetrics.scoring import Scorer, Scoring, resolve_scoring


class ConditionReport(NamedTuple):
    """What is known of one condition: its scalars, and what its figures are drawn from."""

    scalars: dict[str, Tensor]
    matrix: Tensor
    scores: ConditionScores


class PrivacyReport(NamedTuple):
    """All scalars by name, and the conditions they come from."""

    scalars: dict[str, Tensor]
    conditions: dict[str, ConditionReport]
    matrices: SimilarityMatrices


class VoicePrivacy(EmbeddingMetric):
    r"""All that the other metrics say, from one copy of the embeddings, each condition scored once.

    ``update(original, protected, speakers)`` takes embeddings ``(B, D)`` and integers ``(B,)``. ``compute()`` returns
    a flat dictionary of scalars: ``deid`` and ``gvd``; for each condition ``oo``, ``op``, ``pp`` the metrics of its
    scores (``op_d_ece``, ``op_d_ece_reversed``, ``op_l_w``, ``op_tag``, ``op_min_cllr``, ``op_cllr``, ``op_eer``,
    ``op_linkability``) and of its matrix (``op_d_diag``, ``op_d_diag_log``); the normalised relatives ``d_ece_op_oo``,
    ``cllr_op_oo``, ``g_d_ece``, ``g_cllr`` (Noé et al., 2022, eq. 17 to 20). :meth:`report` adds what figures need.

    Up to a few million trials every value is exact. Beyond, scores share 65,536 bins and :meth:`error_bound` says by
    how much D_ECE, minimum Cllr and the equal error rate may differ at most. The original side is scored anew only
    when it has changed since the last time.

    Args:
        similarity: ``"geometric"`` (2022) or ``"sigmoid"`` (2020), see :class:`VoiceSimilarityMatrix`.
        scoring: ``"cosine"``, ``"dot"``, ``"euclidean"``, a fitted :class:`vpmetrics.scoring.PLDA`, or any callable
            from embeddings ``(A, D)`` and ``(B, D)`` to scores ``(A, B)``, higher = more alike.
        validate_args: Look for NaN and infinite embeddings; stalls an accelerator once per update.
        kwargs: Those of :class:`torchmetrics.Metric`.

    Example:
        >>> from vpmetrics.data import demo_voices
        >>> voices = demo_voices()
        >>> metric = VoicePrivacy()
        >>> metric.update(voices.original, voices.protected["B2"], voices.speakers)
        >>> metric.compute()["deid"]
        tensor(0.3748)
    """

    def __init__(
        self,
        similarity: str = "geometric",
        scoring: Scoring = "cosine",
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(validate_args=validate_args, **kwargs)
        check_choice("similarity", similarity, SIMILARITIES)
        self.similarity, self.scoring = similarity, scoring
        resolve_scoring(scoring)
        self._baseline: tuple[tuple[Tensor, Tensor], ConditionReport] | None = None

    def report(self) -> PrivacyReport:
        """All scalars of ``compute``, with the conditions they come from."""
        return self._report(self._sides())

    def error_bound(self) -> dict[str, Tensor]:
        """By how much binning may have lowered each value at most; 0 where every score counts for itself."""
        return {
            f"{name.lower()}_{key}": bound
            for name, condition in self.report().conditions.items()
            for key, bound in _error_bound(condition.scores).items()
        }

    def _value_of_sides(self, sides: Sides) -> dict[str, Tensor]:
        return self._report(sides).scalars

    def _report(self, sides: Sides) -> PrivacyReport:
        names, scorer = names_of(sides), resolve_scoring(self.scoring)
        conditions = {
            "OO": self._report_of_original(sides.original, names, scorer),
            "OP": self._report_of(TrialGrid(*sides.pair("OP"), names, scorer)),
            "PP": self._report_of(TrialGrid(*sides.pair("PP"), names, scorer)),
        }
        dtype = result_dtype(sides.original.vectors, sides.protected.vectors)
        oo, op, pp = (condition.matrix for condition in conditions.values())
        matrices = SimilarityMatrices(oo, op, pp, names)
        scalars = {
            "deid": de_identification(oo, op),
            "gvd": voice_distinctiveness(oo, pp),
            **{f"{name.lower()}_{key}": v for name, report in conditions.items() for key, v in report.scalars.items()},
        }
        scalars.update(normalised_relatives(scalars))
        scalars = {key: value.to(dtype) if value.is_floating_point() else value for key, value in scalars.items()}
        return PrivacyReport(scalars, conditions, matrices)

    def _report_of_original(self, side: Side, names: Tensor, scorer: Scorer) -> ConditionReport:
        """Original speech is the same in every epoch of a training, so its report is kept."""
        order = row_keys(side.vectors).argsort()
        rows = side.vectors.detach()[order], side.speakers[order]
        if self._baseline is not None and all(map(torch.equal, self._baseline[0], rows)):
            return self._baseline[1]
        report = self._report_of(TrialGrid(side, side, names, scorer))
        self._baseline = rows, report
        return report

    def _report_of(self, grid: TrialGrid) -> ConditionReport:
        scores = score_condition(grid)
        matrix = similarity_of_condition(grid, scores, self.similarity)
        scalars = {
            **disclosure_of_counts(scores.counts, torch.float64),
            "min_cllr": min_cllr_of_steps(scores.counts.ascending),
            "cllr": cllr_of_sums(*cllr_sums_of_values(scores.values, scores.counts_of_values)),
            "eer": eer_of_steps(scores.counts.ascending),
            "linkability": linkability_of_values(scores.values, scores.counts_of_values),
            "d_diag": diagonal_dominance(matrix),
            "d_diag_log": diagonal_dominance(matrix, log_domain=True),
        }
        return ConditionReport(scalars, matrix, scores)


def _error_bound(scores: ConditionScores) -> dict[str, Tensor]:
    exact = scores.separated is None
    upper = scores.counts if scores.separated is None else scores.separated
    values = [
        {
            "d_ece": disclosure_of_counts(counts, torch.float64)["d_ece"],
            "d_ece_reversed": disclosure_of_counts(counts, torch.float64)["d_ece_reversed"],
            "min_cllr": min_cllr_of_steps(counts.ascending),
            "eer": eer_of_steps(counts.ascending),
        }
        for counts in (upper, scores.counts)
    ]
    return {key: torch.zeros_like(v) if exact else (v - values[1][key]).abs() for key, v in values[0].items()}
