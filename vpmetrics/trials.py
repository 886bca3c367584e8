"""Score metrics computed from embeddings."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from inspect import Parameter
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from torchmetrics import Metric, MetricCollection

from vpmetrics._base.embedding_metric import EmbeddingMetric
from vpmetrics._base.privacy_metric import ClassOrInstanceValue, PrivacyMetric
from vpmetrics._base.score_metric import ScoreMetric
from vpmetrics._scores.pair_blocks import Block, PairBlocks
from vpmetrics._scores.scorers import Scoring, resolve_scoring
from vpmetrics._util.dtypes import result_dtype
from vpmetrics._util.validation import reject_options, warn_undefined
from vpmetrics._utterances.conditions import look_up_condition
from vpmetrics._utterances.utterances import EvaluationData
from vpmetrics.report.trial_report import ScoredTrials, calibrate_across_session_halves, mean_c_ece
from vpmetrics.zebra import CalibrationDistortion


class EmbeddingTrials(EmbeddingMetric):
    """Any metric of scores, computed from embeddings.

    As input to ``forward`` and ``update`` the metric accepts ``original`` and ``protected``, embeddings ``(B, D)``, and
    ``speakers`` ``(B,)``. As output of ``compute`` it returns what ``metric`` returns for all trials of the condition.
    torchmetrics' binary metrics squash scores outside [0, 1] batch by batch; here they get the scores unchanged.

    Args:
        metric: A metric with ``update(preds, target)``, or a collection of such; a copy of it is kept. For
            :class:`CalibrationDistortion` it is fitted on half of each speaker's sessions and used on the rest.
        condition: ``"OO"``, ``"OP"`` or ``"PP"``: the enrolment side and the test side.
        scoring: ``"cosine"``, ``"dot"``, ``"euclidean"``, a fitted :class:`vpmetrics.scoring.PLDA`, or a callable from
            embeddings ``(A, D)`` and ``(B, D)`` to scores ``(A, B)``, higher = more alike.
        validate_args: Whether NaN and infinite embeddings raise; forces a GPU sync per update.
        kwargs: Those of :class:`torchmetrics.Metric`.

    Example:
        >>> from torchmetrics.classification import BinaryAUROC
        >>> metric = EmbeddingTrials(BinaryAUROC(), condition="OP")
        >>> original = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
        >>> metric.update(original, 1 - original, torch.tensor([3, 3, 8, 8]))
        >>> metric.compute()
        tensor(0.)
    """

    higher_is_better = ClassOrInstanceValue(None, lambda trials: getattr(trials.metric, "higher_is_better", None))

    def __init__(
        self,
        metric: Metric | MetricCollection,
        condition: str = "OP",
        scoring: Scoring = "cosine",
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        look_up_condition(condition)
        _check_metric(metric)
        reject_options(self, kwargs, dict.fromkeys(("bandwidth", "intervals"), "give it to the metric that is fed"))
        super().__init__(getattr(metric, "bandwidth", None), validate_args, **kwargs)
        resolve_scoring(scoring)
        self.condition, self.scoring = condition, scoring
        self.metric: Any = metric.clone()
        for member in self._members():
            # This metric validates embeddings and gathers them from all processes, and with them every trial.
            member.sync_on_compute = member._to_sync = False
            if hasattr(member, "validate_args"):
                member.validate_args = False
            if hasattr(member, "normalization"):
                member.normalization = None

    def _compute_value(self, data: EvaluationData) -> Any:
        dtype = result_dtype(data.original.embeddings, data.protected.embeddings)
        if isinstance(self.metric, CalibrationDistortion):
            return self._distortion_across_session_halves(data, self.metric.calibration).to(dtype)
        pairs, nan = self._pairs(data), torch.full((), torch.nan, device=data.speakers.device)
        if self.bandwidth is not None and isinstance(self.metric, ScoreMetric):
            value = self.metric._compute_value_of_trials(*pairs.scores_and_labels())
        elif pairs.num_pairs == 0 and not all(isinstance(member, PrivacyMetric) for member in self._members()):
            warn_undefined("There are no trials.")
            value = nan
        else:
            try:
                self._feed_trials(pairs)
                value = self.metric.compute()
            finally:
                self.metric.reset()
            if bool(pairs.enrolment.embeddings.isnan().any() | pairs.test.embeddings.isnan().any()):
                warn_undefined("Some embeddings are NaN.")
                value = tree_map_only(Tensor, lambda x: x * torch.nan if x.is_floating_point() else x, value)
        # A small number of trials is scored in float64, so that equal scores tie.
        return tree_map_only(Tensor, lambda part: part.to(dtype) if part.dtype == torch.float64 else part, value)

    def _distortion_across_session_halves(self, data: EvaluationData, calibration: str) -> Tensor:
        """Return C_ECE, calibrated on half of each speaker's sessions and used on the rest: the mean of both ways."""
        if data.protected.sessions is None:
            reason = "Calibration distortion requires `sessions`: a calibration learnt on some is used on others."
            warn_undefined(reason)
            return torch.full((), torch.nan, device=data.speakers.device)

        runs = calibrate_across_session_halves(
            data, lambda run: ScoredTrials(*self._pairs(run).scores_and_labels()), calibration
        )
        return mean_c_ece(runs)

    def plot(self, val: Any = None, ax: Any = None, **kwargs: Any) -> tuple[Any, Any]:
        """Draw what the metric draws of these trials: the ECE profile for :class:`ZebraDisclosure`.

        ``val``, a value of ``compute`` or a sequence of them over epochs, is drawn instead, on the axes ``ax``;
        ``kwargs`` are those of that metric's own ``plot``, such as ``label``.
        """
        if val is not None:
            drawn: tuple[Any, Any] = self.metric.plot(val, ax, **kwargs)
            return drawn
        if isinstance(self.metric, CalibrationDistortion):
            return super().plot(None, ax)
        try:
            with self._gather_states():
                self._feed_trials(self._pairs(self._collect_data()))
            drawn = self.metric.plot(None, ax, **kwargs)
        finally:
            self.metric.reset()
        return drawn

    def _members(self) -> list[Metric]:
        return [module for module in self.metric.modules() if isinstance(module, Metric)]

    def _pairs(self, data: EvaluationData) -> PairBlocks:
        condition = look_up_condition(self.condition)
        return PairBlocks(*data.sides(condition), len(data.speakers), resolve_scoring(self.scoring), condition)

    def _feed_trials(self, pairs: PairBlocks) -> None:
        """Reset the metric and update it with all trials, and with intervals also with their speakers."""
        self.metric.reset()
        if pairs.is_exact:
            pairs.round_and_keep_blocks()
        members = self._members()
        has_intervals = any(getattr(member, "intervals", None) is not None for member in members)
        batches: Iterable[Sequence[Block]] = ([block] for block in pairs)
        if not all(isinstance(member, PrivacyMetric) or hasattr(member, "normalization") for member in members):
            batches = [list(pairs)]  # torchmetrics' binary metrics squash a batch with scores outside [0, 1]
        for blocks in itertools.chain(batches, [[]]):  # without trials, the metric gets one empty batch
            scores, is_target = pairs.scores_and_labels(blocks)
            if len(scores) or not (blocks or any(member.update_called for member in members)):
                speakers = {"speakers": list(pairs.trial_speakers(blocks))} if has_intervals else {}
                self.metric.update(scores.nan_to_num(), is_target, **speakers)


def _check_metric(metric: Any) -> None:
    """Raise unless the value is a metric of scores and labels."""
    if not isinstance(metric, (Metric, MetricCollection)):
        raise TypeError(f"Expected `metric` to be a Metric or a MetricCollection, but got {type(metric).__name__}.")
    if isinstance(metric, CalibrationDistortion):  # its runs are sessions
        return
    for member in metric.values() if isinstance(metric, MetricCollection) else [metric]:
        parameters = member._update_signature.parameters
        names = [each.name for each in parameters.values() if each.kind is each.POSITIONAL_OR_KEYWORD]
        required = [name for name in names if parameters[name].default is Parameter.empty]
        if isinstance(member, EmbeddingMetric) or len(required) > 2:
            raise TypeError(
                f"Expected `metric` to take scores and labels by `update(preds, target)`, "
                f"but got {type(member).__name__} with `update({', '.join(parameters)})`."
            )
