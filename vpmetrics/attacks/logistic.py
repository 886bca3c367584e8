"""Logistic regression of several problems at once: the weights of attacks in the fused score."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

RIDGE = 1e-3  # on weights of standardised scores
_STEPS = 5  # of Newton; more change D_ECE by less than .002
_SHARES_OF_STEP = (1.0, 0.5, 0.25, 0.0625)  # of which the one with the least cost is taken


def fit_logistic_weights(
    scores: Tensor, is_target: Tensor, pair_weights: Tensor, is_used: Tensor | None = None
) -> Tensor:
    r"""Fit a logistic regression with an intercept for each problem.

    .. math::
        \min_{w, b} \sum_i c_i \ln\left(1 + e^{-y_i (w^\top z_i + b)}\right)
        + \tfrac{\lambda}{2} \lVert w \rVert^2,
        \qquad \lambda = 0.001

    Args:
        scores: Standardised scores ``(P, A)`` of pairs.
        is_target: Whether a pair is a target, ``(P,)`` or, for each problem, ``(Q, P)``.
        pair_weights: ``(Q, P)``, the weights :math:`c` of each problem; those of each class add up
            to 1/2.
        is_used: ``(Q, A)``, which scores each problem uses; None for all.

    Returns:
        The weights ``(Q, A)``; zeros for scores that are not used and for a problem without
        weights.

    Example:
        >>> scores = torch.tensor([[2.0], [1.0], [-1.0], [-2.0], [-1.5], [0.5]])
        >>> is_target = torch.tensor([True, True, False, False, True, False])
        >>> fit_logistic_weights(scores, is_target, torch.full((1, 6), 1 / 6)).shape
        torch.Size([1, 1])
    """
    columns = torch.cat([scores, torch.ones_like(scores[:, :1])], dim=1)
    num_weights = columns.shape[1]
    target = is_target.to(scores)
    sign = 1 - 2 * target
    ridge = torch.full_like(columns[0], RIDGE)
    ridge[-1] = torch.finfo(torch.float32).eps  # of the intercept
    diagonal = ridge.diag()
    used = scores.new_ones(len(pair_weights), num_weights)
    if is_used is not None:
        used[:, :-1] = is_used.to(scores)
    used_pairs = used[:, :, None] * used[:, None, :]
    shares = torch.tensor(_SHARES_OF_STEP, dtype=scores.dtype, device=scores.device)[:, None, None]
    weights = scores.new_zeros(len(pair_weights), num_weights)
    fused = weights @ columns.T
    for _ in range(_STEPS):
        probability = fused.sigmoid()
        gradient = used * ((pair_weights * (probability - target)) @ columns) + ridge * weights
        curvature = pair_weights * probability * (1 - probability)
        hessian = used_pairs * ((curvature[:, None] * columns.T) @ columns) + diagonal
        factor = torch.linalg.cholesky_ex(hessian).L
        step = torch.cholesky_solve(gradient[..., None], factor)[..., 0].nan_to_num(0, 0, 0)
        candidates = weights - shares * step  # (4, Q, A)
        candidate_scores = candidates @ columns.T
        losses = (pair_weights * softplus(sign * candidate_scores)).sum(-1)
        best = (losses + 0.5 * candidates.square() @ ridge).argmin(0)[None, :, None]
        weights = candidates.gather(0, best.expand(1, -1, num_weights))[0]
        fused = candidate_scores.gather(0, best.expand(1, -1, len(columns)))[0]
    return weights[:, :-1]
