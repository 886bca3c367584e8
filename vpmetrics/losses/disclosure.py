"""The losses: to hide who spoke, to keep protected speakers distinct, and both."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vpmetrics._util.scalar import FULL_DISCLOSURE
from vpmetrics._util.validation import check_choice, check_nonnegative, check_positive
from vpmetrics.losses.attackers import (
    RunningMoments,
    attack_with_halves,
    attack_with_past_batches,
    subtract_speaker_session_means,
    within_session_variance_share,
)
from vpmetrics.losses.embedding_loss import (
    EmbeddingLoss,
    Trials,
    UnitRowBatch,
    cosines,
    flatten_above_diagonal,
    flatten_off_diagonal,
    has_both_classes,
    match_labels,
    sum_surrogate_disclosures,
)

ATTACKS = ("batch", "past")
_NEGLIGIBLE_SHARE = 1e-3  # of the variance within sessions


class DisclosureLoss(EmbeddingLoss):
    r"""Compute how much protected speech discloses about who spoke the original.

    D_ECE of OP in both directions.

    .. math::
        L = \sum_a \left[ D_\mathrm{ECE}(s_a) + D_\mathrm{ECE}(-s_a) \right] \quad \text{[+ the
        same across sessions]} \quad + \lambda\, \eta^2 + \mu \ln(1 + t / \epsilon)

    with scores :math:`s_{kl} = \cos(o_k, p_l)` of all ordered pairs :math:`k \neq l`, and those of
    every further attacker :math:`a`. D_ECE is that of smoothed PAV, so it has a gradient. PAV is
    one-sided: where target trials score *below* non-target trials, D_ECE is 0, although an attacker
    only has to flip the sign. Minimising D_ECE(s) alone ends there; minimising the sum does not.

    With ``sessions``, protected speech of a speaker must not link *across* sessions either: pairs
    of one speaker in two sessions against pairs of two speakers. No loss can protect an anonymiser
    without a secret that changes: an attacker who runs it on known recordings links every speaker,
    also where OP discloses nothing.

    ``loss.parts`` has the parts of the last value: ``op``, and where they are computed
    ``flatness``, ``across`` and ``session_invariance``.

    The value hardly depends on the batch size from 32 rows on. Calibration fits noise where trials
    are few: speech that discloses nothing has a loss of 0.14 with 8 rows, 0.03 with 16, 0.015 with
    32 and less than 0.005 from 64 on. The gradient of all rows together is at most 10 divided by
    their length, also where they are nearly constant.

    Args:
        bandwidth: Width of the smoothing in standard deviations of the scores. Any from 0.01 to 0.2
            trains: minimised over 72 bundled embeddings for 300 steps, it leaves at most 0.0014 bit
            of exact D_ECE; 0.5 leaves 0.0035.
        centred: Also defend against an attacker who first subtracts the mean of each side.
        flatness: Weight :math:`\lambda` of the share :math:`\eta^2` of the variance of the scores
            that lies between pairs of speakers. Where it is low, scores depend little on any
            speaker, also on unseen ones.
        straight_through: Return exact D_ECE, as a metric would, with the gradient of smoothed
            D_ECE.
        attacks: Also defend against attackers who map protected to original speech by ridge
            regression: ``"batch"``, fitted on half of the speakers of a batch and used on the
            others; ``"past"``, fitted on some 20 past batches. The module keeps moments of these in
            training mode, ``(1 + 2 D, 1 + 2 D)``, and uses them from the eleventh batch on.
        session_invariance: Weight :math:`\mu` of the share :math:`t` of the variance that lies
            within sessions, averaged over whitened directions, with :math:`\epsilon` = 0.001. It
            trains a keyed anonymiser to remove the utterance from every direction, also from those
            of low variance, which a linear attacker uses. It needs ``sessions``, and past batches
            as above; until then :math:`t = 1` stands in, so that the loss does not rise when the
            penalty is known.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> original = torch.randn(64, 16, generator=generator)
        >>> protected = torch.randn(64, 16, generator=generator, requires_grad=True)
        >>> loss = DisclosureLoss()(original, protected, speakers=torch.arange(64) % 8)
        >>> loss.backward()
        >>> loss.item() < 0.05
        True
    """

    def __init__(
        self,
        bandwidth: float = 0.02,
        centred: bool = False,
        flatness: float = 0.0,
        straight_through: bool = False,
        attacks: Sequence[str] = (),
        session_invariance: float = 0.0,
    ) -> None:
        super().__init__()
        check_positive("bandwidth", bandwidth)
        check_nonnegative("flatness", flatness)
        check_nonnegative("session_invariance", session_invariance)
        if isinstance(attacks, str):
            raise TypeError(f"Expected `attacks` to be a sequence of names, but got {attacks!r}.")
        for attack in attacks:
            check_choice("attacks", attack, ATTACKS)
        self.bandwidth = bandwidth
        self.centred = centred
        self.flatness = flatness
        self.straight_through = straight_through
        self.attacks = tuple(attacks)
        self.session_invariance = session_invariance
        self.past_pairs = RunningMoments()
        self.past_sessions = RunningMoments()

    def compute_parts(self, batch: UnitRowBatch) -> dict[str, Tensor]:
        """Return the disclosures to all attackers and the weighted penalties.

        In training, learn from the batch.
        """
        is_same_speaker = match_labels(batch.speakers)
        scores, is_counted = self._score_batch(batch)
        trials = Trials(
            flatten_off_diagonal(scores),
            flatten_off_diagonal(is_same_speaker),
            flatten_off_diagonal(is_counted),
        )
        terms = {"op": self._sum_disclosures(trials)}
        if self.flatness > 0:
            terms["flatness"] = self.flatness * _between_speakers_share(scores[0], is_same_speaker)
        if batch.sessions is not None:
            terms["across"] = self._disclosure_across_sessions(
                batch, batch.sessions, is_same_speaker
            )
            if self.session_invariance > 0:
                share = self._within_session_share(batch, batch.sessions)
                terms["session_invariance"] = (
                    self.session_invariance * (share / _NEGLIGIBLE_SHARE).log1p()
                )
        return terms

    def _sum_disclosures(self, trials: Trials) -> Tensor:
        return sum_surrogate_disclosures(
            trials, self.bandwidth, self.straight_through, is_two_sided=True
        )

    def _score_batch(self, batch: UnitRowBatch) -> tuple[Tensor, Tensor]:
        """Return the scores of every attacker, and which of them are trials, ``(A, B, B)`` each.

        The first attacker compares by cosine; the others are those that the settings name.
        """
        original, protected, speakers, _ = batch
        every_pair = torch.ones_like(match_labels(speakers))
        attacked = [(original, protected, every_pair)]
        if self.centred:
            attacked.append(
                (original - original.mean(dim=0), protected - protected.mean(dim=0), every_pair)
            )
        if "batch" in self.attacks:
            attacked.append(attack_with_halves(original, protected, speakers))
        if "past" in self.attacks:
            past = self.past_pairs.compute_covariances(protected.shape[1], protected.device)
            if past is not None:
                attacked.append(attack_with_past_batches(past, original, protected))
            self.past_pairs.observe_if_training(original, protected)
        scores = []
        is_counted = []
        for enrolment, test, is_trial in attacked:
            scores.append(cosines(enrolment, test))
            is_counted.append(is_trial)
        return torch.stack(scores), torch.stack(is_counted)

    def _disclosure_across_sessions(
        self, batch: UnitRowBatch, sessions: Tensor, is_same_speaker: Tensor
    ) -> Tensor:
        is_across = ~is_same_speaker | ~match_labels(sessions)
        scores = cosines(batch.protected, batch.protected)[None]
        trials = Trials(
            flatten_above_diagonal(scores),
            flatten_above_diagonal(is_same_speaker),
            flatten_above_diagonal(is_across),
        )
        return self._sum_disclosures(trials)

    def _within_session_share(self, batch: UnitRowBatch, sessions: Tensor) -> Tensor:
        """Return the share of the variance within sessions.

        1, the largest, until enough batches have passed.
        """
        protected = batch.protected
        deviations = subtract_speaker_session_means(protected, batch.speakers, sessions)
        past = self.past_sessions.compute_covariances(protected.shape[1], protected.device)
        self.past_sessions.observe_if_training(deviations, protected)
        if past is None:
            return torch.ones_like(deviations[0, 0])
        return within_session_variance_share(deviations, protected, past)


def _between_speakers_share(scores: Tensor, is_same_speaker: Tensor) -> Tensor:
    """Return the share of the variance of scores ``(B, B)`` that lies between pairs of speakers."""
    is_defined = (is_same_speaker.sum() > len(is_same_speaker)) & ~is_same_speaker.all()
    average = is_same_speaker.to(scores.dtype) / is_same_speaker.sum(dim=1)
    mean_of_pair = average @ scores @ average.T
    rounding = torch.finfo(scores.dtype).eps ** 2
    share = mean_of_pair.var() / (scores.var() + rounding)
    return torch.where(is_defined, share, 0)


class DistinctivenessLoss(EmbeddingLoss):
    r"""Compute how far protected speech is from full distinctiveness.

    The maximal D_ECE minus that of PP.

    .. math::
        L = \frac{1}{2 \ln 2} - D_\mathrm{ECE}(s), \qquad s_{kl} = \cos(p_k, p_l),\ k < l

    With ``sessions``, target trials are those *within* a session: a speaker may change voice from
    session to session.

    Args:
        bandwidth: Width of the smoothing in standard deviations of the scores.
        straight_through: Return exact D_ECE, as a metric would, with the gradient of smoothed
            D_ECE.

    Example:
        >>> protected = torch.eye(4)[torch.arange(16) % 4]
        >>> DistinctivenessLoss()(
        ...     protected, protected, speakers=torch.arange(16) % 4
        ... ).item() < 0.001
        True
    """

    def __init__(self, bandwidth: float = 0.02, straight_through: bool = False) -> None:
        super().__init__()
        check_positive("bandwidth", bandwidth)
        self.bandwidth = bandwidth
        self.straight_through = straight_through

    def compute_parts(self, batch: UnitRowBatch) -> dict[str, Tensor]:
        """Return the maximal D_ECE minus that of protected rows, 0 without both classes.

        The original is not used.
        """
        is_same_speaker = match_labels(batch.speakers)
        is_within = torch.ones_like(is_same_speaker)
        if batch.sessions is not None:
            is_within = ~is_same_speaker | match_labels(batch.sessions)
        trials = Trials(
            flatten_above_diagonal(cosines(batch.protected, batch.protected)[None]),
            flatten_above_diagonal(is_same_speaker),
            flatten_above_diagonal(is_within),
        )
        disclosed = sum_surrogate_disclosures(
            trials, self.bandwidth, self.straight_through, is_two_sided=False
        )
        is_defined = has_both_classes(trials.is_target, trials.is_counted)
        return {"distinctiveness": torch.where(is_defined, FULL_DISCLOSURE - disclosed, 0)}


class PseudonymisationLoss(EmbeddingLoss):
    r"""Compute a loss that hides speakers and keeps them distinct.

    Every speaker gets another voice.

    .. math::
        L = w_\mathrm{OP} L_\mathrm{disclosure} + w_\mathrm{PP} L_\mathrm{distinctiveness}

    ``loss.parts`` has the parts of the last value, those of :class:`DisclosureLoss` and
    ``distinctiveness``. Log them: the penalty of session invariance is the largest of them for most
    of a training, so the sum says little of the disclosure.

    Give the anonymiser a key, a random vector drawn for every session, and call the loss with
    ``sessions``, two per speaker and batch. Then protected speech links within a session, but
    neither across sessions nor to the original. Without a key no loss can hide speakers: an
    attacker runs the anonymiser on recordings of known speakers, or learns from pairs to undo it.
    Keys need about as many dimensions as embeddings: directions that no key fills keep the
    utterance.

    The defaults carry over to speakers and attackers not trained on
    (``tests/bench/test_bench_training.py``):

    - *Session invariance* matters most for a keyed anonymiser. Trained against cosines and centring
      alone, unseen voices give 0.01 bit to these and 0.5 bit to a ridge regression fitted on other
      speakers. Training against such attackers instead leaves 0.4, and in addition changes nothing
      measurable, so ``attacks`` are off.
    - *The bandwidth* matters little: after 400 steps on the bundled voices, unseen speakers
      disclose 0.08 bit to the strongest attack on OP with 0.02, and 0.05 with 0.1.
    - *Flatness.* Target trials are few, and pairs of speakers many: scores should depend on
      neither.
    - *Centring.* A shift common to all voices hides scores too, until an attacker subtracts means.

    Args:
        disclosure: Weight of :class:`DisclosureLoss`.
        distinctiveness: Weight of :class:`DistinctivenessLoss`.
        bandwidth: Width of the smoothing in standard deviations of the scores.
        centred: Also defend against an attacker who subtracts means; see :class:`DisclosureLoss`.
        flatness: Weight of the dependence of scores on speakers; see :class:`DisclosureLoss`.
        straight_through: Return exact D_ECE with the gradient of smoothed D_ECE.
        attacks: Trained attackers, ``"batch"`` and ``"past"``; see :class:`DisclosureLoss`.
        session_invariance: Weight of the variance within sessions, where they are given; see
            :class:`DisclosureLoss`.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> original, speakers = torch.randn(64, 16, generator=generator), torch.arange(64) % 8
        >>> sessions = 2 * speakers + (torch.arange(64) >= 32)
        >>> key = torch.randn(16, 16, generator=generator)[sessions]
        >>> anonymiser = torch.nn.Linear(16 + 16, 16)
        >>> protected = anonymiser(torch.cat([original, key], dim=1))
        >>> PseudonymisationLoss()(original, protected, speakers, sessions).backward()
        >>> anonymiser.weight.grad.isfinite().all()
        tensor(True)
    """

    def __init__(
        self,
        disclosure: float = 1.0,
        distinctiveness: float = 1.0,
        bandwidth: float = 0.02,
        centred: bool = True,
        flatness: float = 0.2,
        straight_through: bool = False,
        attacks: Sequence[str] = (),
        session_invariance: float = 1.0,
    ) -> None:
        super().__init__()
        check_nonnegative("disclosure", disclosure)
        check_nonnegative("distinctiveness", distinctiveness)
        self.weights = disclosure, distinctiveness
        self.disclosure = DisclosureLoss(
            bandwidth, centred, flatness, straight_through, attacks, session_invariance
        )
        self.distinctiveness = DistinctivenessLoss(bandwidth, straight_through)

    def compute_parts(self, batch: UnitRowBatch) -> dict[str, Tensor]:
        """Return the weighted parts of both losses."""
        disclosure_weight, distinctiveness_weight = self.weights
        weighted_terms: dict[str, Tensor] = {}
        for name, term in self.disclosure.compute_parts(batch).items():
            weighted_terms[name] = disclosure_weight * term
        for name, term in self.distinctiveness.compute_parts(batch).items():
            weighted_terms[name] = distinctiveness_weight * term
        return weighted_terms

    def extra_repr(self) -> str:
        """Return the weights, for ``print``."""
        return "weights: {} (disclosure), {} (distinctiveness)".format(*self.weights)
