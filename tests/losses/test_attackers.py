"""Attackers inside the losses, and the variance within sessions, against NumPy."""

import math

import numpy as np
import pytest
import torch
from loss_batches import keyed_batch, train_on, trials, two_sided, unit
from torch.testing import assert_close

from vpmetrics.losses import DisclosureLoss, PseudonymisationLoss
from vpmetrics.losses.attackers import (
    RunningMoments,
    subtract_speaker_session_means,
    within_session_variance_share,
)


def covariance(rows, weights=None):
    return np.cov(rows.T, aweights=weights, ddof=0)


def add_ridge(square, share):
    return square + share * np.trace(square) / len(square) * np.eye(len(square))


def ridge_scores(fitted_o, fitted_p, original, protected, ridge, weights=None):
    """Cosines of whitened originals with their ridge regression on protected rows."""
    mean_o = np.average(fitted_o, axis=0, weights=weights)
    mean_p = np.average(fitted_p, axis=0, weights=weights)
    together = covariance(np.hstack([fitted_o, fitted_p]), weights)
    width = fitted_o.shape[1]
    oo = together[:width, :width]
    pp = together[width:, width:]
    po = together[width:, :width]
    lengths, axes = np.linalg.eigh(add_ridge(oo, 1e-2))
    white = axes / np.sqrt(lengths) @ axes.T
    predicted = (protected - mean_p) @ np.linalg.solve(add_ridge(pp, ridge), po @ white)
    return unit((original - mean_o) @ white) @ unit(predicted).T


def past_rows(past, side):
    """All unit rows of a side, and weights that fall by 0.95 from batch to batch."""
    weights = 0.95 ** np.arange(len(past))[::-1]
    return np.concatenate([unit(rows[side]) for rows in past]), weights.repeat(len(past[0][0]))


def trials_of(scores, names):
    """Scores and labels of all pairs of different utterances."""
    is_trial = ~np.eye(len(scores), dtype=bool)
    return scores[is_trial], (names[:, None] == names)[is_trial].astype(int)


def test_past_batch_attack_matches_the_definition():
    loss, past = train_on(DisclosureLoss(straight_through=True, attacks=("past",)))
    original, protected, speakers, _ = keyed_batch()
    o, weights = past_rows(past, 0)
    p, _ = past_rows(past, 1)
    scores = ridge_scores(o, p, unit(original), unit(protected), 1e-4, weights)
    attacked = two_sided(*trials_of(scores, speakers.numpy()))
    plain = two_sided(*trials(original, protected, speakers))
    assert attacked > plain + 0.1
    assert loss(original, protected, speakers).item() == pytest.approx(plain + attacked, abs=1e-9)


def test_half_speakers_attack_matches_the_definition():
    original, protected, speakers, _ = keyed_batch(speakers=7)
    o = unit(original)
    p = unit(protected)
    names = speakers.numpy()
    unique_names = np.unique(names)
    keys = [np.mean(o[names == name] @ np.cos(np.arange(1, 6))) for name in unique_names]
    names_of_first_half = unique_names[np.argsort(keys)[::2]]
    is_first = np.isin(names, names_of_first_half)
    scores = []
    labels = []
    for is_fitted_on in (is_first, ~is_first):
        o_fitted = o[is_fitted_on]
        p_fitted = p[is_fitted_on]
        scores_of_half = ridge_scores(
            o_fitted, p_fitted, o[~is_fitted_on], p[~is_fitted_on], ridge=1e-3
        )
        scores_of_trials, labels_of_trials = trials_of(scores_of_half, names[~is_fitted_on])
        scores.append(scores_of_trials)
        labels.append(labels_of_trials)
    expected = two_sided(np.concatenate(scores), np.concatenate(labels))
    expected += two_sided(*trials(original, protected, speakers))
    loss = DisclosureLoss(straight_through=True, attacks=("batch",))
    assert loss(original, protected, speakers).item() == pytest.approx(expected, abs=1e-9)


def test_within_session_variance_share_matches_the_definition():
    loss, past = train_on(DisclosureLoss(session_invariance=2.0))
    plain = DisclosureLoss()
    rows = keyed_batch()
    inverse = np.linalg.inv(add_ridge(covariance(*past_rows(past, 1)), 1e-6))
    p = unit(rows[1])
    sessions = rows[3].numpy()
    deviations = [
        row - p[sessions == session].mean(0) for row, session in zip(p, sessions, strict=True)
    ]
    share = sum(row @ inverse @ row for row in deviations) / p.size
    added = loss(*rows) - plain(*rows)
    assert added.item() == pytest.approx(2 * math.log1p(share / 1e-3), abs=1e-9)


def share_of_itself(protected, speakers, sessions):
    """The share, and its gradient, where the past is the batch."""
    rows = protected.clone().requires_grad_()
    deviations = subtract_speaker_session_means(rows, speakers, sessions)
    moments = RunningMoments()
    for _ in range(12):
        moments.observe_if_training(deviations, rows)
    share = within_session_variance_share(
        deviations, rows, moments.compute_covariances(rows.shape[1], rows.device)
    )
    return share, torch.autograd.grad(share, rows)[0]


def test_variance_share_gradient_matches_finite_differences():
    _, protected, *labels = keyed_batch()
    share, gradient = share_of_itself(protected, *labels)
    steps = 1e-5 * torch.eye(protected.numel(), dtype=torch.float64).view(-1, *protected.shape)
    values = [
        [share_of_itself(protected + sign * step, *labels)[0].item() for step in steps]
        for sign in (1, -1)
    ]
    assert 0 < share < 1
    assert_close(
        gradient.flatten(),
        torch.tensor(values, dtype=torch.float64).diff(dim=0)[0] / -2e-5,
        atol=1e-6,
        rtol=1e-4,
    )
    # Scaling a direction changes nothing: the derivative along every linear map is 0.
    stretch = (protected - protected.mean(0)).T @ gradient
    assert stretch.abs().max() < 1e-5 * gradient.norm() * protected.norm()


def test_past_batches_are_used_only_when_large_enough():
    rows = keyed_batch()
    loss = DisclosureLoss(attacks=("past",), session_invariance=1.0)
    plain = DisclosureLoss()(*rows)
    train_on(loss, 9)
    loss(*rows)
    assert_close(loss.parts["op"] + loss.parts["across"], plain, check_dtype=False)
    assert float(loss.parts["session_invariance"]) == pytest.approx(math.log1p(1 / 1e-3))
    train_on(loss, 1)
    loss(*rows)
    assert loss.parts["op"] + loss.parts["across"] > plain + 0.1
    assert float(loss.parts["session_invariance"]) < math.log1p(1 / 1e-3)


def test_only_finite_training_batches_are_accumulated():
    original, protected, *labels = keyed_batch()
    loss, _ = train_on(PseudonymisationLoss())
    moments = loss.disclosure.past_sessions.moments.clone()
    broken = protected.index_fill(0, torch.tensor([3]), torch.nan).requires_grad_()
    assert loss(original, protected, *labels).isfinite()
    assert loss(original, broken, *labels).isnan()
    with torch.no_grad():
        loss(original, protected.clone().requires_grad_(), *labels)
    loss.eval()(original, protected.clone().requires_grad_(), *labels)
    assert_close(loss.disclosure.past_sessions.moments, moments, atol=0, rtol=0)
    loss.train()(original, protected.clone().requires_grad_(), *labels)
    assert not torch.equal(loss.disclosure.past_sessions.moments, moments)


def test_moments_reset_on_a_new_width_and_are_not_saved():
    loss = train_on(PseudonymisationLoss())[0]
    fresh = train_on(PseudonymisationLoss(), width=7)[0]
    assert loss.state_dict() == {}
    train_on(loss, width=7)
    assert_close(
        loss.disclosure.past_sessions.moments,
        fresh.disclosure.past_sessions.moments,
        atol=0,
        rtol=0,
    )


def test_moments_survive_a_module_in_half_precision():
    rows = keyed_batch(dtype=torch.float32)
    loss, _ = train_on(DisclosureLoss(attacks=("past",)), dtype=torch.float32)
    before = loss(*rows)
    value = loss.to(torch.bfloat16)(rows[0], rows[1].requires_grad_(), *rows[2:])
    assert_close(value, before, atol=0.2, rtol=0)  # moments rounded to 8 bits
    assert loss.past_pairs.moments.dtype == torch.float64
