r"""Similarity rank disclosure: the bits that the rank of the true speaker among N discloses.

Chandra et al., "Evaluating voice anonymisation using similarity rank disclosure", 2026, after
Bäckström's measure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from vpmetrics._identification.beta_binomial import fit_beta_binomial
from vpmetrics._identification.identification import identify
from vpmetrics._identification.references import validate_and_form_trials
from vpmetrics._scores.scorers import Scoring
from vpmetrics._util.dtypes import result_dtype, widen
from vpmetrics._util.validation import (
    check_bandwidth,
    check_choice,
    check_histogram_shape,
    warn_undefined,
)

MODELS = ("empirical", "beta_binomial")


def rank_histogram(
    inputs: Tensor,
    speakers: Tensor,
    references: Tensor | None = None,
    reference_speakers: Tensor | None = None,
    scoring: Scoring = "cosine",
    bandwidth: float | None = None,
) -> Tensor:
    """Count the inputs whose own speaker has rank 1, 2, ..., N (Chandra et al., 2026, section 3.1).

    There is one reference per speaker: the mean of that speaker's reference utterances. Two
    protocols keep an input and its reference apart:

    * disjoint: ``references`` and ``reference_speakers`` are other utterances than the inputs;
    * leave-one-out: without ``reference_speakers``, row i of ``references`` is the utterance of
      input i (by default the input itself). The j-th input of a speaker is compared with means that
      each lack the j-th utterance of their speaker, counted cyclically, so that no mean averages
      fewer utterances than the others.

    Tied references, whose scores differ by no more than rounding, share the mass of the ranks they
    cover, which is the expectation of breaking ties at random. Inputs whose speaker has no
    reference left are not counted.

    Args:
        inputs: Floating tensor of shape ``(B, D)``.
        speakers: Integer tensor of shape ``(B,)``, the speaker of each input.
        references: Floating tensor of shape ``(M, D)``, or ``(B, D)`` for leave-one-out; None for
            the inputs.
        reference_speakers: Integer tensor of shape ``(M,)``, or None for leave-one-out.
        scoring: ``"cosine"``, for embeddings, ``"euclidean"``, for histograms, ``"dot"``, or a
            callable from two sets of embeddings to scores, such as :class:`vpmetrics.scoring.PLDA`.
        bandwidth: None counts ranks. A width, in standard deviations of an input's scores, softens
            comparisons of scores to a sigmoid, so that ranks have a gradient.

    Returns:
        Counts of shape ``(N,)``, one per distinct speaker among the references; float32 or wider.

    Example:
        >>> inputs = torch.tensor([[1.0, 0.1], [0.9, 0.0], [0.1, 1.0], [0.7, 0.6]])
        >>> rank_histogram(inputs, speakers=torch.tensor([4, 4, 9, 9]))
        tensor([3., 1.])
    """
    check_bandwidth(bandwidth)
    trials = validate_and_form_trials(inputs, speakers, references, reference_speakers)
    return identify(trials, scoring, has_bits=False, bandwidth=bandwidth).histogram


def rank_disclosure(
    histogram: Tensor, model: str = "empirical", validate_args: bool = True
) -> dict[str, Tensor]:
    r"""Compute what a rank histogram discloses at most, on average and in shares.

    Chandra et al., 2026, section 3.3.

    .. math::
        \varepsilon_j = \log_2 (N \gamma_j), \quad \mathrm{MaxD} = \max_j \varepsilon_j, \quad
        \mathrm{MeanD} = \sum_j \gamma_j \varepsilon_j, \quad \mathrm{IdR} = \gamma_1, \quad
        \mathrm{RS} = \frac{\#\{j : \gamma_j > 1/N\}}{N}

    with :math:`\gamma` the histogram divided by its sum, or a beta-binomial fitted to it.

    Args:
        histogram: Counts or shares of the ranks 1 ... N, shape ``(..., N)``; leading dimensions are
            separate systems.
        model: ``"empirical"``, or ``"beta_binomial"`` to smooth all but the first rank.
        validate_args: Whether negative counts raise; forces a GPU sync.

    Returns:
        Dict of ``max_d`` and ``mean_d`` in bits, ``id_rate`` and ``rank_spread`` as fractions, each
        of shape ``(...)``; NaN for fewer than two references, or no input. Differentiable in the
        histogram, but for ``rank_spread``.

    Example:
        >>> rank_disclosure(torch.tensor([4.0, 2.0, 1.0, 1.0]))
        {'max_d': tensor(1.), 'mean_d': tensor(0.2500), 'id_rate': tensor(0.5000),
         'rank_spread': tensor(0.2500)}
    """
    check_histogram_shape(histogram)
    check_choice("model", model, MODELS)
    if validate_args and bool((histogram < 0).any()):
        raise ValueError(
            f"Expected `histogram` to hold no negative count, but got {histogram.min().item()}."
        )
    ranks = histogram.shape[-1]
    counts = widen(histogram)
    if ranks < 2:
        warn_undefined(f"Ranks need two references at least, but there are {ranks}.")
        counts = counts.new_full((*counts.shape[:-1], 1), torch.nan)
    shares = counts / counts.sum(dim=-1, keepdim=True)
    warn_undefined("A rank histogram holds no input, or NaN.", (ranks > 1) & shares.isnan().any())
    if model == "empirical":
        gamma = shares
    else:
        gamma = fit_beta_binomial(shares).probabilities
    disclosure = (ranks * gamma).clamp(min=torch.finfo(gamma.dtype).tiny).log2()
    # With a tolerance, since the division by the sum and the fit round.
    above_chance = torch.where(gamma.isnan(), torch.nan, (ranks * gamma > 1 + 1e-6).to(gamma.dtype))
    values = {
        "max_d": disclosure.amax(dim=-1),
        "mean_d": (gamma * disclosure).sum(dim=-1).clamp(min=0),  # a divergence from the uniform
        "id_rate": shares[..., 0],
        "rank_spread": above_chance.mean(dim=-1),
    }
    return {name: value.to(result_dtype(histogram)) for name, value in values.items()}


def combine_disclosures(
    disclosures: Sequence[Mapping[str, Tensor]], speakers: int | None = None
) -> dict[str, Tensor]:
    r"""Add up the bits of several features.

    The sum is their joint disclosure if the features are independent, otherwise a guess.

    Where the ranks :math:`j_f` of the true speaker in each feature are independent, and those of
    all others as well, an attacker with all features gains :math:`\sum_f \varepsilon_{j_f}`: the
    MeanD and the MaxD add up. For dependent features the sum is no bound. To measure them, join the
    features in each row and pass a ``scoring`` that adds up their scores to :func:`rank_histogram`.

    Args:
        disclosures: One dict with ``max_d`` and ``mean_d`` per feature, as ``rank_disclosure``
            returns it.
        speakers: The number of references N; when given, no sum exceeds :math:`\log_2 N` bits.

    Returns:
        Dict of ``max_d`` and ``mean_d`` in bits.

    Example:
        >>> pitch = rank_disclosure(torch.tensor([4.0, 2.0, 1.0, 1.0]))
        >>> combine_disclosures([pitch, pitch])
        {'max_d': tensor(2.), 'mean_d': tensor(0.5000)}
    """
    if len(disclosures) == 0:
        raise ValueError("Expected `disclosures` to hold at least one feature, but got none.")
    limit = math.inf if speakers is None else math.log2(speakers)
    totals = {}
    for name in ("max_d", "mean_d"):
        if any(name not in disclosure for disclosure in disclosures):
            raise ValueError(
                f"Expected each of `disclosures` to have the key {name!r}, but one of them has not."
            )
        totals[name] = (
            torch.stack([disclosure[name] for disclosure in disclosures])
            .sum(dim=0)
            .clamp(max=limit)
        )
    return totals
