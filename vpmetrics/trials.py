"""Any score metric, from embeddings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from torchmetrics import Metric, MetricCollection

from vpmetrics._checks import refuse_options, warn_undefined
from vpmetrics._metric.base import PrivacyMetric
from vpmetrics._metric.constants import OfEachMetric
from vpmetrics._metric.embeddings import EmbeddingMetric
from vpmetrics._metric.scores import ScoreMetric
from vpmetrics._precision import result_dtype
from vpmetrics._trials.conditions import condition_of
from vpmetrics._trials.pairs import Tile, TrialGrid
from vpmetrics._trials.scored import ScoredTrials
from vpmetrics._trials.scorers import Scoring, resolve_scoring
from vpmetrics._trials.transfer import calibrated_between_sessions, distortion_of_runs
from vpmetrics._trials.utterances import Sides
from vpmetrics.zebra import CalibrationDistortion


class EmbeddingTrials(EmbeddingMetric):
    """Feeds a metric of scores with the trials of one condition, formed from embeddings tile by tile.

    ``update(original, protected, speakers)`` takes embeddings ``(B, D)`` and integers ``(B,)``; ``compute()`` scores
    all trials and returns what the metric returns for them. torchmetrics' own binary metrics squash scores outside
    [0, 1] batch by batch, which would bend every tile in its own way; here they get the scores as they are.

    Args:
        metric: A metric with ``update(preds, target)``, or a collection of such; a copy of it is kept. For
            :class:`CalibrationDistortion` runs are sessions: half of every speaker's, and the other half, both ways.
        condition: ``"OO"``, ``"OP"`` or ``"PP"``: the reference side and the probe side.
        scoring: ``"cosine"``, ``"dot"``, ``"euclidean"``, a fitted :class:`vpmetrics.scoring.PLDA`, or any callable
            from embeddings ``(A, D)`` and ``(B, D)`` to scores ``(A, B)``, higher = more alike.
        validate_args: Look for NaN and infinite embeddings; forces a GPU sync once per update.
        kwargs: Those of :class:`torchmetrics.Metric`.

    Example:
        >>> from torchmetrics.classification import BinaryAUROC
        >>> metric = EmbeddingTrials(BinaryAUROC(), condition="OP")
        >>> original = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
        >>> metric.update(original, 1 - original, torch.tensor([3, 3, 8, 8]))
        >>> metric.compute()
        tensor(0.)
    """

    # What the metric fed says of itself.
    higher_is_better = OfEachMetric(None, lambda own: getattr(own.metric, "higher_is_better", None))

    def __init__(
        self,
        metric: Metric | MetricCollection,
        condition: str = "OP",
        scoring: Scoring = "cosine",
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        condition_of(condition)
        _check_metric(metric)
        own = "give it to the metric that is fed"
        refuse_options(self, kwargs, {"bandwidth": own, "intervals": own})
        super().__init__(getattr(metric, "bandwidth", None), validate_args, **kwargs)
        resolve_scoring(scoring)
        self.condition, self.scoring, self.metric = condition, scoring, metric.clone()
        for member in self._members():
            # The embeddings are gathered, and with them every trial; and they are checked.
            member.sync_on_compute = member._to_sync = False
            if hasattr(member, "validate_args"):
                member.validate_args = False
            if hasattr(member, "normalization"):
                member.normalization = None

    def _value_of_sides(self, sides: Sides) -> Any:
        dtype = result_dtype(sides.original.vectors, sides.protected.vectors)
        if isinstance(self.metric, CalibrationDistortion):
            return self._value_of_runs(sides, self.metric.calibration).to(dtype)
        grid = self._grid(sides)
        if self.bandwidth is not None and isinstance(self.metric, ScoreMetric):
            value = self.metric._value_of_trials(*grid.all_trials())
        else:
            value = self._value_of_grid(grid)
        # Few trials have all digits there are, so that equal scores tie; what they come to is as wide as what came in.
        return tree_map_only(Tensor, lambda part: part.to(dtype) if part.dtype == torch.float64 else part, value)

    def _value_of_runs(self, sides: Sides, calibration: str) -> Tensor:
        """Half of every speaker's sessions is one run, the other half the other: both ways, averaged."""
        if sides.protected.sessions is None:
            warn_undefined("Nobody said which sessions there are, and a calibration carries over from some to others.")
            return torch.full((), torch.nan, device=sides.voices.device)
        trials_of = lambda run: ScoredTrials(*self._grid(run).all_trials())  # noqa: E731
        return distortion_of_runs(calibrated_between_sessions(sides, trials_of, calibration))

    def _value_of_grid(self, grid: TrialGrid) -> Any:
        if grid.pairs == 0 and not all(isinstance(member, PrivacyMetric) for member in self._members()):
            warn_undefined("There are no trials.")
            return torch.full((), torch.nan, device=grid.voices.device)
        try:
            self._feed(grid)
            value = self.metric.compute()
        finally:
            self.metric.reset()
        if bool(grid.nan_seen):
            warn_undefined("Some embeddings are NaN.")
            value = tree_map_only(Tensor, _nan_like, value)
        return value

    def plot(self, val: Any = None, ax: Any = None, **kwargs: Any) -> tuple[Any, Any]:
        """Draw what the metric fed draws of these trials: the ECE profile for :class:`ZebraDisclosure`.

        Args:
            val: A value of ``compute``, or a sequence of them over epochs, to draw instead.
            ax: Matplotlib axes to draw on; new ones when left out.
            kwargs: More of that metric's own ``plot``, such as ``label``.

        Returns:
            Figure and axes; neither shown nor saved.
        """
        if val is not None:
            drawn: Any = self.metric.plot(val, ax, **kwargs)
            return drawn  # type: ignore[no-any-return]
        if isinstance(self.metric, CalibrationDistortion):
            return super().plot(None, ax)
        try:
            with self._gathered():
                self._feed(self._grid(self._sides()))
            drawn = self.metric.plot(None, ax, **kwargs)
        finally:
            self.metric.reset()
        return drawn  # type: ignore[no-any-return]

    def _members(self) -> list[Metric]:
        return [module for module in self.metric.modules() if isinstance(module, Metric)]

    def _grid(self, sides: Sides) -> TrialGrid:
        condition = condition_of(self.condition)
        return TrialGrid(*sides.pair(condition), sides.voices, resolve_scoring(self.scoring), condition)

    def _feed(self, grid: TrialGrid) -> None:
        self.metric.reset()
        batches: Iterable[Iterable[Tile]] = ([tile] for tile in grid)
        # torchmetrics' metrics of decisions squash a batch that leaves [0, 1]: all trials are one batch for them, and
        # tiles do not show.
        if not all(isinstance(member, PrivacyMetric) or hasattr(member, "normalization") for member in self._members()):
            batches = [list(grid)]
        for tiles in batches:
            self._update(grid, list(tiles))
        if not any(member.update_called for member in self._members()):
            self._update(grid, [])

    def _update(self, grid: TrialGrid, tiles: list[Tile]) -> None:
        """One batch of trials, and where the metric wants intervals those who speak in them."""
        scores, is_target = grid.trials_of(tiles)
        asked = any(getattr(member, "intervals", None) is not None for member in self._members())
        speakers = {"speakers": grid.speakers_of(tiles)} if asked else {}
        if len(scores) or not tiles:
            self.metric.update(scores.nan_to_num(), is_target, **speakers)


def _check_metric(metric: Any) -> None:
    """Refuse what cannot be fed with scores and labels."""
    if not isinstance(metric, (Metric, MetricCollection)):
        raise TypeError(f"Expected `metric` to be a Metric or a MetricCollection, but got {type(metric).__name__}.")
    if isinstance(metric, CalibrationDistortion):  # its runs are sessions
        return
    for member in metric.values() if isinstance(metric, MetricCollection) else [metric]:
        takes = list(member._update_signature.parameters.values())
        needed = [one for one in takes if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD]
        if isinstance(member, EmbeddingMetric) or len(needed) > 2:
            names = ", ".join(one.name for one in takes)
            raise TypeError(
                f"Expected `metric` to take scores and labels by `update(preds, target)`, "
                f"but got {type(member).__name__} with `update({names})`."
            )


def _nan_like(value: Tensor) -> Tensor:
    return torch.full_like(value, torch.nan) if value.is_floating_point() else value
