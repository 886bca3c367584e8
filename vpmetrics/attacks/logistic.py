"""Logistic regression of several problems at once: the weights of attacks in the fused score."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

# Newton steps. 4 or 8 change D_ECE by less than .0002 on Gaussian voices of 6 to 40 speakers; 4 by
# .0006 on the bundled voices, which are the easiest to distinguish.
_STEPS = 5
_SHARES_OF_STEP = (1.0, 0.5, 0.25, 0.0625)  # of which the one with the least cost is taken


def fit_logistic_weights(
    scores: Tensor,
    is_target: Tensor,
    pair_weights: Tensor,
    ridge: Tensor,
    is_used: Tensor | None = None,
) -> Tensor:
    r"""Fit a logistic regression with an intercept for each problem.

    .. math::
        \min_{w, b} \sum_i c_i \ln\left(1 + e^{-y_i (w^\top z_i + b)}\right)
        + \tfrac12 \sum_a \lambda_a w_a^2

    Costs and gradients are sums in the dtype of the scores. Second derivatives are float32, which
    is several times faster, and changes the way to the minimum only, not the minimum.

    Args:
        scores: Standardised scores ``(..., P, A)`` of pairs.
        is_target: Whether a pair is a target, ``(P,)``.
        pair_weights: ``(..., Q, P)``, the weights :math:`c` of each problem; those of each class
            add up to 1/2.
        ridge: :math:`\lambda` of each weight, ``(..., Q, A)``.
        is_used: ``(Q, A)``, which scores each problem uses; None for all.

    Returns:
        The weights ``(..., Q, A)``; zeros for scores that are not used and for a problem without
        weights.

    Example:
        >>> scores = torch.tensor([[2.0], [1.0], [-1.0], [-2.0], [-1.5], [0.5]])
        >>> is_target = torch.tensor([True, True, False, False, True, False])
        >>> fit_logistic_weights(
        ...     scores, is_target, torch.full((1, 6), 1 / 6), ridge=torch.ones(1, 1)
        ... ).shape
        torch.Size([1, 1])
    """
    num_problems = pair_weights.shape[-2]
    num_scores = scores.shape[-1]
    # The sign of a class is in its scores and their 1, so that all costs are softplus(w @ column).
    sign = 1 - 2 * is_target.to(scores)
    columns = sign[:, None] * pad(scores, (0, 1), value=1.0)
    rows = columns.mT.contiguous()
    narrow_columns = columns.float()
    narrow_rows = rows.float()
    ridge = pad(ridge, (0, 1), value=torch.finfo(torch.float32).eps)  # of the intercept
    diagonal = torch.diag_embed(ridge)
    used = scores.new_ones(num_problems, num_scores + 1)
    if is_used is not None:
        used[:, :-1] = is_used.to(scores)
    used_pairs = used[:, :, None] * used[:, None, :]
    shares = torch.tensor(_SHARES_OF_STEP, dtype=scores.dtype, device=scores.device)
    shares = shares.view(-1, *[1] * pair_weights.dim())
    weights = scores.new_zeros(*pair_weights.shape[:-1], num_scores + 1)
    fused = weights @ rows
    for _ in range(_STEPS):
        error = fused.sigmoid()  # the probability of the other class
        weighted_error = pair_weights * error
        gradient = used * (weighted_error @ columns) + ridge * weights
        curvature = (weighted_error * (1 - error)).float()
        # all problems side by side, so that one product serves them
        weighted_rows = (curvature[..., None, :] * narrow_rows[..., None, :, :]).flatten(-3, -2)
        hessian = (weighted_rows @ narrow_columns).unflatten(-2, (num_problems, -1)).to(scores)
        factor = torch.linalg.cholesky_ex(used_pairs * hessian + diagonal).L
        step = torch.cholesky_solve(gradient[..., None], factor)[..., 0].nan_to_num(0, 0, 0)
        candidates = weights - shares * step
        candidate_scores = fused - shares * (step @ rows)
        costs = (pair_weights * softplus(candidate_scores)).sum(-1)
        costs = costs + 0.5 * (ridge * candidates.square()).sum(-1)
        best = costs.argmin(0)[None, ..., None]
        weights = candidates.gather(0, best.expand(1, *weights.shape))[0]
        fused = candidate_scores.gather(0, best.expand(1, *fused.shape))[0]
    return weights[..., :-1]
