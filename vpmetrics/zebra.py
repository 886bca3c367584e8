"""ZEBRA: expected and worst-case disclosure of identity.

And how well a calibration carries over to another run.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vpmetrics._base.privacy_metric import PrivacyMetric, States
from vpmetrics._base.score_metric import ScoreMetric, pack_trials
from vpmetrics._scores.calibration import transferred_llr
from vpmetrics._scores.measures import minimum_cross_entropy
from vpmetrics._util.validation import check_choice, reject_options, suppress_warnings
from vpmetrics.functional.zebra import calibration_distortion, ece_profile, zebra_of_both_signs

RUN_STATES = ("scores_run0", "is_target_run0", "scores_run1", "is_target_run1")


class ZebraDisclosure(ScoreMetric):
    """Expected and worst-case disclosure of identity by scores.

    See :func:`vpmetrics.functional.zebra_disclosure`.

    As input to ``forward`` and ``update`` the metric accepts ``preds``, scores of any shape and
    scale, higher = more alike, and ``target`` of the same shape, 1 = same speaker. As output of
    ``compute`` it returns a dictionary: ``d_ece`` in bits, from 0 (nothing disclosed) to 0.7213;
    ``l_w``, a base-10 logarithm; ``tag``, its category from 0 to 6
    (:func:`vpmetrics.functional.zebra_tag` gives the letter; -1 if undefined); ``d_ece_reversed``,
    the ``d_ece`` of the negated scores, since an attacker may flip the sign. The worst case grows
    with the number of trials.

    Args:
        thresholds: None is exact; a number of bins or a tensor of edges keeps two histograms in
            constant memory.
        score_range: Range of a number of bins; learnt when left out.
        bandwidth: Width of the smooth surrogate's kernel in standard deviations of the scores; None
            is exact.
        validate_args: Whether NaN and labels other than 0 and 1 raise; forces a GPU sync per
            update.
        intervals: Confidence level, such as 0.95; ``update`` needs ``speakers``, and ``compute``
            adds ``d_ece_low``, ``d_ece_high``, ``d_ece_reversed_low`` and ``d_ece_reversed_high``;
            an extreme such as ``l_w`` has none.
        kwargs: Those of :class:`torchmetrics.Metric`.

    Example:
        >>> metric = ZebraDisclosure()
        >>> metric.update(torch.tensor([0.0, 1.0]), torch.tensor([0, 1]))
        >>> metric.update(torch.tensor([2.0, 3.0]), torch.tensor([0, 1]))
        >>> metric.compute()
        {'d_ece': tensor(0.3607), 'l_w': tensor(0.3010), 'tag': tensor(1.),
         'd_ece_reversed': tensor(0.)}
    """

    higher_is_better: bool = False
    plot_lower_bound: float = 0.0

    _compute_value_of_steps = staticmethod(zebra_of_both_signs)

    def plot(
        self, val: Any = None, ax: Any = None, label: str = "minimum", actual: bool = True
    ) -> tuple[Any, Any]:
        """Draw the ECE profile: the empirical cross-entropy over all priors.

        That of the prior and that of the scores.

        ``val``, a value of ``compute`` or a sequence of them over epochs, is drawn instead. Several
        systems may share the axes ``ax``, each with its ``label``. ``actual`` also draws, dotted,
        the profile of the scores taken as log-likelihood ratios.
        """
        if val is not None:
            return super().plot(val, ax)
        from vpmetrics.plotting.score_plots import PROFILE_LOG_ODDS, draw_ece_profile

        with self._gather_states():
            states = self._joined_states()
            steps = self._count_trials(states)
            odds = torch.as_tensor(PROFILE_LOG_ODDS, device=self.device)
            minimum = minimum_cross_entropy(steps.ascending, odds)
            uncalibrated = None
            if actual and self.keeps_scores:
                uncalibrated = ece_profile(
                    states["scores"], states["is_target"], odds, validate_args=False
                ).actual
            values = self._compute_value_of_steps(steps, torch.float64)
        return draw_ece_profile(minimum, uncalibrated, values, ax, label)


class CalibrationDistortion(PrivacyMetric):
    r"""C_ECE: the D_ECE of scores calibrated on another run of the same safeguard.

    Noé et al., 2022, section 5.3.

    .. math::
        C_\mathrm{ECE} = D_\mathrm{ECE}\bigl(c(\mathcal{S}_1 \mid \mathcal{S}_0)\bigr)

    As input to ``update`` the metric accepts ``preds`` and ``target`` of the run that the attacker
    fits the calibration ``c`` on (``run=0``) and of the attacked run (``run=1``). As output of
    ``compute`` it returns a scalar in bits: 0 is good; below 0 the calibration misleads.
    ``forward`` returns NaN, since one batch is of one run.

    Args:
        calibration: ``"linear"``, the map ``a * s + b`` of least Cllr, or ``"isotonic"``, PAV under
            Laplace's rule.
        validate_args: Whether NaN and labels other than 0 and 1 raise; forces a GPU sync per
            update.
        kwargs: Those of :class:`torchmetrics.Metric`.

    Example:
        >>> metric = CalibrationDistortion()
        >>> metric.update(torch.tensor([0.0, 1.0, 2.0, 3.0]), torch.tensor([0, 1, 0, 1]), run=0)
        >>> metric.update(torch.tensor([1.0, 0.0, 2.0, 3.0]), torch.tensor([0, 1, 0, 1]), run=1)
        >>> metric.compute()
        tensor(-0.1206)
    """

    higher_is_better: bool = False

    def __init__(
        self, calibration: str = "linear", validate_args: bool = True, **kwargs: Any
    ) -> None:
        reasons = {
            "bandwidth": "one batch is of one run, and so has no value to descend",
            "intervals": "scores come without their speakers",
        }
        reject_options(self, kwargs, reasons)
        super().__init__(validate_args=validate_args, **kwargs)
        check_choice("calibration", calibration, ("linear", "isotonic"))
        self.calibration = calibration
        for name in RUN_STATES:
            self.add_state(name, default=[], dist_reduce_fx="cat")

    def update(self, preds: Tensor, target: Tensor, run: int) -> None:
        """Accumulate a batch of trials.

        Of ``run`` 0, which the calibration is fitted on, or of 1, the attacked run.
        """
        self._store(self._pack_batch(preds, target, run, validate_values=self.validate_args))

    def _pack_batch(
        self, preds: Tensor, target: Tensor, run: int, validate_values: bool = False
    ) -> dict[str, Tensor]:
        trials = pack_trials(self, preds, target, None, validate_values)
        check_choice("run", run, (0, 1))
        return {f"scores_run{run}": trials["scores"], f"is_target_run{run}": trials["is_target"]}

    def _empty_states(self) -> dict[str, Tensor]:
        scores = torch.empty(0, device=self.device)
        return dict(zip(RUN_STATES, (scores, scores.bool(), scores, scores.bool()), strict=True))

    def _compute_from(self, states: States) -> Tensor:
        """Return C_ECE of run 1 under the calibration fitted on run 0.

        NaN for a batch, which is of one run.
        """
        run0 = states["scores_run0"], states["is_target_run0"]
        run1 = states["scores_run1"], states["is_target_run1"]
        return calibration_distortion(*run1, *run0, self.calibration, validate_args=False)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Accumulate a batch; without a warning that one batch, of one run, has no value."""
        with suppress_warnings():
            return super().forward(*args, **kwargs)

    def plot(
        self, val: Any = None, ax: Any = None, label: str | None = None, kind: str = "calibrated"
    ) -> tuple[Any, Any]:
        """Draw the reliability of the attacker's calibration.

        The share of targets against its posterior.

        Args:
            val: A value of ``compute``, or a sequence of them over epochs, to draw instead.
            ax: Matplotlib axes to draw on; several systems may share them.
            label: Name of the system; that of the calibration when left out.
            kind: ``"calibrated"``; ``"raw"``, the scores of run 1 taken as log-likelihood ratios
                (figure 4); or ``"profile"``, the ECE profiles of both runs under PAV, and of run 1
                under both calibrations fitted on run 0 (figure 8).
        """
        if val is not None:
            return super().plot(val, ax)
        check_choice("kind", kind, ("calibrated", "raw", "profile"))
        from vpmetrics.plotting.score_plots import draw_share_by_posterior
        from vpmetrics.report.figures import draw_calibration_transfer

        with self._gather_states():
            states = self._joined_states()
        preds = states["scores_run1"]
        target = states["is_target_run1"]
        learnt = states["scores_run0"], states["is_target_run0"]
        if kind == "profile":
            return draw_calibration_transfer(preds, target, *learnt, ax=ax)
        is_raw = kind == "raw"
        if is_raw:
            llr = preds
        else:
            llr = transferred_llr(preds, target, *learnt, self.calibration, validate_args=False)
        name = label or ("scores" if is_raw else self.calibration)
        return draw_share_by_posterior(llr, torch.stack([~target, target]), ax, name)
