"""A fitted PLDA, for the argument `scoring` of metrics."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vpmetrics._util.validation import check_embeddings

__all__ = ["PLDA"]


class PLDA(nn.Module):
    r"""Two-covariance PLDA: the log-likelihood ratio of one speaker against two.

    Under Gaussian speakers and sessions.

    .. math::
        x = \mu + y + \epsilon, \quad y \sim \mathcal{N}(0, B), \quad \epsilon \sim \mathcal{N}(0,
        W)

    In the basis where :math:`W` is the identity and :math:`B` is diagonal, the ratio of two
    embeddings is a sum over dimensions, so that a block of scores costs one matrix product.

    ``fit`` estimates :math:`\mu`, :math:`B` and :math:`W` from labelled embeddings by moments.
    Calling it with embeddings ``(A, D)`` and ``(B, D)`` returns scores ``(A, B)``. It holds buffers
    only.

    Example:
        >>> draw = torch.Generator().manual_seed(0)
        >>> voices = torch.randn(30, 4, generator=draw).repeat_interleave(10, 0)
        >>> x, speakers = (
        ...     voices + 0.3 * torch.randn(300, 4, generator=draw),
        ...     torch.arange(30).repeat_interleave(10),
        ... )
        >>> scores = PLDA().fit(x, speakers)(x[:2], x[1:11:9])
        >>> scores.sign()
        tensor([[ 1., -1.],
                [ 1., -1.]])
    """

    mean: Tensor
    basis: Tensor
    between: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("mean", "basis", "between"):
            self.register_buffer(name, torch.empty(0))

    def fit(self, embeddings: Tensor, speakers: Tensor) -> PLDA:
        """Estimate the model from embeddings ``(N, D)`` and integer speakers ``(N,)`` of the rows.

        Return itself.
        """
        check_embeddings(embeddings, None, speakers)
        x = embeddings.detach().double()
        names, index, counts = torch.unique(speakers, return_inverse=True, return_counts=True)
        if len(names) < 2 or len(x) <= len(names):
            raise ValueError(
                "Expected `speakers` to name at least two speakers, one of them more than once,"
                f" but got {len(names)} speakers in {len(x)} rows."
            )
        centroids = x.new_zeros(len(names), x.shape[1]).index_add(0, index, x) / counts[:, None]
        residuals = x - centroids[index]
        within = residuals.T @ residuals / (len(x) - len(names))
        # Centroids keep a share of the covariance within speakers; the rest is between speakers.
        spread = torch.cov(centroids.T) - within * (1 / counts).mean()
        ridge = 1e-6 * within.diagonal().mean()
        chol = torch.linalg.cholesky(
            within + ridge * torch.eye(len(within), device=x.device, dtype=x.dtype)
        )
        inverse = torch.linalg.inv(chol)
        # In this basis the covariance within speakers is the identity, and that between speakers is
        # diagonal.
        between, rotation = torch.linalg.eigh(inverse @ spread @ inverse.T)
        self.mean = centroids.mean(0)
        self.between = between.clamp(min=0)
        self.basis = inverse.T @ rotation
        return self

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Return natural-log likelihood ratios ``(A, B)`` of all pairs."""
        if self.basis.numel() == 0:
            raise RuntimeError("Expected PLDA to be fitted before it is called: see `fit`.")
        left = (a - self.mean.to(a)) @ self.basis.to(a)
        right = (b - self.mean.to(b)) @ self.basis.to(b)
        between = self.between.to(left)
        total = 1 + between
        # determinant of the covariance of a pair, per dimension
        joint = total.square() - between.square()
        cross_weight = between / joint
        square_weight = 0.5 * (1 / total - total / joint)
        constant = (total.log() - 0.5 * joint.log()).sum()
        left_bias = left.square() @ square_weight
        right_bias = right.square() @ square_weight
        return (left * cross_weight) @ right.T + left_bias[:, None] + right_bias + constant
