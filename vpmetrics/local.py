"""Local information disclosure."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from vpmetrics._base.embedding_metric import EmbeddingMetric
from vpmetrics._identification.identification import Identification, identify_condition
from vpmetrics._scores.jackknife import JackknifeGroups, add_intervals, group_speakers
from vpmetrics._scores.scorers import Scoring, resolve_scoring
from vpmetrics._util.validation import check_finite_slope, reject_options
from vpmetrics._utterances.conditions import look_up_condition
from vpmetrics._utterances.utterances import EvaluationData
from vpmetrics.functional.local import summarise_information
from vpmetrics.report.identification_scalars import jackknife_scalars, pool_identifications


class LocalInformationDisclosure(EmbeddingMetric):
    r"""Compute the bits that every single trial discloses, and their summary.

    See arXiv 2607.06259, 2026.

    .. math::
        \mathrm{LID}_i = \log_2 \bigl(N\, \mathrm{softmax}(w z_i)_{t_i}\bigr)

    with :math:`z_i` the standardised scores of an input against N references and :math:`t_i` its
    true speaker.

    As input to ``forward`` and ``update`` the metric accepts embeddings ``original (B, D)``,
    ``protected (B, D)`` and ``speakers (B,)``. With ``is_reference (B,)`` the utterances marked are
    the references and the others the inputs; without, every utterance is an input and is left out
    of its own speaker's mean.

    As output of ``compute`` the metric returns a dictionary: ``alid``, the mean in bits, 0 =
    nothing disclosed, :math:`\log_2 N` = everything, negative where scores mislead; ``pdr`` and
    ``ndr``, the shares of trials that disclose and that do not; ``lid_pos`` and ``lid_neg``, the
    means of these two sides, NaN for one without trials; ``lid_max``; ``link_rate``, the share of
    trials whose true speaker strictly beats all others. NaN with one warning for fewer than two
    speakers with trials.

    Args:
        condition: ``"PP"``, protected references and inputs; ``"OP"``, original references and
            protected inputs; ``"OO"``, both original.
        scoring: ``"cosine"``, ``"dot"``, ``"euclidean"``, a fitted :class:`vpmetrics.scoring.PLDA`,
            or any callable from embeddings ``(A, D)`` and ``(B, D)`` to scores ``(A, B)``, higher =
            more alike.
        slope: The slope ``w``, from :func:`vpmetrics.functional.fit_local_slope` on a development
            set. Left out, it is cross-fitted on other speakers, see
            :func:`vpmetrics.functional.identify`.
        validate_args: Whether values are validated for NaN and infinity; forces a GPU sync per
            update.
        intervals: Confidence level such as 0.95; adds ``<key>_low``, ``<key>_high`` of all but
            ``lid_pos``, ``lid_neg`` and ``lid_max``, from the leave-one-speaker-out jackknife.
        kwargs: Those of :class:`torchmetrics.Metric`.

    Example:
        >>> import torch
        >>> metric = LocalInformationDisclosure(slope=1.5)
        >>> protected = torch.tensor([[1.0, 0.1], [0.9, 0.0], [0.1, 1.0], [0.7, 0.6]])
        >>> metric.update(protected=protected, speakers=torch.tensor([4, 4, 9, 9]))
        >>> values = metric.compute()
        >>> values["alid"], values["pdr"], values["link_rate"]
        (tensor(-0.1521), tensor(0.7500), tensor(0.7500))
    """

    higher_is_better: bool = False

    def __init__(
        self,
        condition: str = "PP",
        scoring: Scoring = "cosine",
        slope: float | None = None,
        validate_args: bool = True,
        intervals: float | None = None,
        **kwargs: Any,
    ) -> None:
        reject_options(
            self, kwargs, {"bandwidth": "descend a loss of vpmetrics.losses, which is two-sided"}
        )
        super().__init__(validate_args=validate_args, intervals=intervals, **kwargs)
        look_up_condition(condition)
        resolve_scoring(scoring)
        check_finite_slope(slope)
        self.condition = condition
        self.scoring = scoring
        self.slope = slope

    def _identify_and_summarise(
        self, data: EvaluationData, groups: JackknifeGroups | None = None
    ) -> tuple[list[Identification], Identification, dict[str, Tensor]]:
        """Return what is known of each group of the data, of all groups, and a summary of that."""
        condition = look_up_condition(self.condition)
        found_of_group = identify_condition(
            data, condition, self.scoring, slope=self.slope, groups=groups
        )
        pooled = pool_identifications(found_of_group)
        assert pooled.bits is not None
        return found_of_group, pooled, summarise_information(pooled.bits, pooled.linked)

    def _compute_value(self, data: EvaluationData) -> dict[str, Tensor]:
        groups = None if self.intervals is None else group_speakers(data)
        found_of_group, _, values = self._identify_and_summarise(data, groups)
        if self.intervals is None or groups is None:
            return values
        jackknife = jackknife_scalars(found_of_group, groups, "empirical")
        return add_intervals(values, jackknife, self.intervals)

    def plot(self, val: Any = None, ax: Any = None, label: str = "system") -> tuple[Any, Any]:
        """Draw which share of the trials discloses more than x bits, over x.

        ``val``, a value of ``compute`` or a sequence of them over epochs, is drawn instead. Several
        systems may share the axes ``ax``, each with its ``label``.
        """
        if val is not None:
            return super().plot(val, ax)
        from vpmetrics.plotting.identification_plots import draw_local_information

        with self._gather_states():
            _, pooled, values = self._identify_and_summarise(self._collect_data())
        assert pooled.bits is not None
        return draw_local_information(pooled.bits, len(pooled.histogram), values, ax, label)
