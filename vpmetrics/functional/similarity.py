r"""Voice similarity matrices, de-identification and voice distinctiveness.

Noé et al., "Speech pseudonymisation assessment using voice similarity matrices", Interspeech 2020;
Noé et al., "Towards a unified assessment framework of speech pseudonymisation", Computer Speech and
Language 72, 2022.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vpmetrics._scores.scorers import Scoring, resolve_scoring
from vpmetrics._scores.speaker_similarity import (
    SIMILARITIES,
    SimilarityMatrices,
    compute_matrices,
    deid_of_dominances,
    gvd_of_dominances,
)
from vpmetrics._util.dtypes import result_dtype, widen
from vpmetrics._util.validation import check_bandwidth, check_choice, check_tensor, collect_warnings
from vpmetrics._utterances.utterances import deduplicate_and_index, pack_utterances


def voice_similarity_matrix(
    original: Tensor | None,
    protected: Tensor | None,
    speakers: Tensor,
    similarity: str = "geometric",
    scoring: Scoring = "cosine",
    bandwidth: float | None = None,
    utterances: Tensor | None = None,
    validate_args: bool = True,
) -> SimilarityMatrices:
    r"""Compute how similar the voices of all pairs of speakers are, original and protected.

    .. math::
        \mathrm{Sim}(i, j) = \prod_{l \in \mathcal{L}_{ij}} \sigma(l)^{1 / |\mathcal{L}_{ij}|}
        \quad\text{(2022)}, \qquad
        S(i, j) = \sigma\Bigl(\tfrac{1}{|\mathcal{L}_{ij}|} \sum_{l \in \mathcal{L}_{ij}} l\Bigr)
        \quad\text{(2020)}

    over the log-likelihood ratios :math:`\mathcal{L}_{ij}` of the utterances of speaker i against
    those of speaker j, PAV under Laplace's rule of each condition by itself. Every unordered pair
    of utterances is a trial within a side; between the sides, every pair but an utterance and its
    own protected version.

    Args:
        original: Embeddings ``(N, D)`` of the original speech, or None.
        protected: Embeddings ``(N, D)`` of the protected speech, row i that of row i of
            ``original``, or None.
        speakers: Speaker of each row, ``(N,)``; any integers.
        similarity: ``"geometric"``, the geometric mean of 2022, or ``"sigmoid"``, that of 2020.
        scoring: As in :class:`vpmetrics.VoiceSimilarityMatrix`.
        bandwidth: As there.
        utterances: Recording of each row, ``(N,)``; copies of one count once.
        validate_args: As there.

    Returns:
        Named tuple ``(oo, op, pp, speakers)``: matrices ``(S, S)`` in [0, 1], speakers ascending.
        NaN where two speakers have no trial, and everywhere, with one warning, where a condition
        cannot be calibrated.

    Example:
        >>> original = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
        >>> voice_similarity_matrix(original, original.flip(1), torch.tensor([3, 3, 8, 8])).oo
        tensor([[0.9091, 0.1818],
                [0.1818, 0.9091]])
    """
    check_choice("similarity", similarity, SIMILARITIES)
    check_bandwidth(bandwidth)
    rows = pack_utterances(
        original, protected, speakers, utterances=utterances, validate_values=validate_args
    )
    with collect_warnings():
        return compute_matrices(
            deduplicate_and_index(rows), similarity, resolve_scoring(scoring), bandwidth
        )


def diagonal_dominance(matrix: Tensor, log_domain: bool = False) -> Tensor:
    r"""Compute by how much the diagonal of a similarity matrix exceeds the rest (eq. 8).

    .. math::
        D_\mathrm{diag}(M) = \Bigl|\frac{1}{N} \sum_i M_{ii} - \frac{1}{N(N-1)} \sum_{j \ne k}
        M_{jk}\Bigr|

    Args:
        matrix: Similarities ``(S, S)``; NaN cells, where two speakers have no trial, are left out
            of the averages.
        log_domain: Compare :math:`-\log_2 \mathrm{Sim}` instead, off the diagonal minus on it and
            with its sign.

    Returns:
        Scalar, in [0, 1] or, in the log domain, in bits; NaN with fewer than two speakers.

    Example:
        >>> diagonal_dominance(torch.tensor([[0.9, 0.2], [0.4, 0.7]]))
        tensor(0.5000)
    """
    check_tensor("matrix", matrix)
    if matrix.dim() != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"Expected `matrix` to have shape (S, S), but got {tuple(matrix.shape)}.")
    values = widen(matrix)
    if log_domain:
        values = -values.log2()
    is_diagonal = torch.eye(len(matrix), dtype=torch.bool, device=matrix.device)
    difference = values[is_diagonal].nanmean() - values[~is_diagonal].nanmean()
    dominance = -difference if log_domain else difference.abs()
    return dominance.to(result_dtype(matrix))


def de_identification(oo: Tensor, op: Tensor) -> Tensor:
    r"""Compute DeID, the relative loss of diagonal dominance from OO to OP similarities (eq. 9).

    .. math::
        \mathrm{DeID} = 1 - \frac{D_\mathrm{diag}(M_\mathrm{OP})}{D_\mathrm{diag}(M_\mathrm{OO})}

    Args:
        oo: Similarities ``(S, S)`` within original speech.
        op: Similarities ``(S, S)`` between original and protected speech.

    Returns:
        Scalar, 1.0 = 100 %, no dominance is left; 0 = none is lost. NaN with one warning where
        original speech has no dominant diagonal.

    Example:
        >>> de_identification(torch.eye(2), torch.tensor([[0.6, 0.5], [0.4, 0.5]]))
        tensor(0.9000)
    """
    return deid_of_dominances(diagonal_dominance(oo), diagonal_dominance(op))


def voice_distinctiveness(oo: Tensor, pp: Tensor) -> Tensor:
    r"""Compute G_VD, the gain of voice distinctiveness from original to protected speech (eq. 10).

    .. math::
        G_\mathrm{VD} = 10 \log_{10}
        \frac{D_\mathrm{diag}(M_\mathrm{PP})}{D_\mathrm{diag}(M_\mathrm{OO})}

    Args:
        oo: Similarities ``(S, S)`` within original speech.
        pp: Similarities ``(S, S)`` within protected speech.

    Returns:
        Scalar in dB: 0 = voices as distinct as before, below 0 a loss, -inf all voices alike. NaN
            with one warning
        where original speech has no dominant diagonal.

    Example:
        >>> voice_distinctiveness(torch.eye(2), torch.eye(2) / 10)
        tensor(-10.)
    """
    return gvd_of_dominances(diagonal_dominance(oo), diagonal_dominance(pp))


def normalised_relatives(scalars: dict[str, Tensor]) -> dict[str, Tensor]:
    r"""Compute ratios of D_ECE and minimum Cllr to those of original speech, as DeID and G_VD.

    .. math::
        D_\mathrm{ECE}^{(\mathrm{OP/OO})} = 1 -
        \frac{D_\mathrm{ECE}^{(\mathrm{OP})}}{D_\mathrm{ECE}^{(\mathrm{OO})}}, \quad
        C^{(\mathrm{OP/OO})} = \frac{C^{(\mathrm{OP})} - C^{(\mathrm{OO})}}{1 - C^{(\mathrm{OO})}},
        \quad
        G_D = 10 \log_{10} \frac{D_\mathrm{ECE}^{(\mathrm{PP})}}{D_\mathrm{ECE}^{(\mathrm{OO})}},
        \quad G_C = 10 \log_{10} \frac{1 - C^{(\mathrm{PP})}}{1 - C^{(\mathrm{OO})}}

    with the minimum Cllr for C (eq. 17 to 20). The paper prints OO for PP in the numerator of the
    last one.

    Args:
        scalars: ``oo_d_ece``, ``op_d_ece``, ``pp_d_ece``, ``oo_min_cllr``, ``op_min_cllr``,
            ``pp_min_cllr``.

    Returns:
        ``d_ece_op_oo`` and ``cllr_op_oo``, 1.0 = full de-identification; ``g_d_ece`` and ``g_cllr``
        in dB, 0 = voices as distinct as before. NaN where original speech discloses nothing.

    Example:
        >>> values = {"oo_d_ece": 0.6, "op_d_ece": 0.3, "pp_d_ece": 0.06}
        >>> values |= {"oo_min_cllr": 0.2, "op_min_cllr": 0.6, "pp_min_cllr": 0.92}
        >>> normalised_relatives({key: torch.tensor(value) for key, value in values.items()})
        {'d_ece_op_oo': tensor(0.5000), 'cllr_op_oo': tensor(0.5000),
         'g_d_ece': tensor(-10.), 'g_cllr': tensor(-10.0000)}
    """

    def relative_to(original: Tensor, value: Tensor) -> Tensor:
        return torch.where(original > 1e-12, value.clamp(min=0) / original, torch.nan)

    oo_d_ece = scalars["oo_d_ece"]
    op_d_ece_ratio = relative_to(oo_d_ece, scalars["op_d_ece"])
    pp_d_ece_ratio = relative_to(oo_d_ece, scalars["pp_d_ece"])
    oo_information = 1 - scalars["oo_min_cllr"]
    op_information_ratio = relative_to(oo_information, 1 - scalars["op_min_cllr"])
    pp_information_ratio = relative_to(oo_information, 1 - scalars["pp_min_cllr"])
    return {
        "d_ece_op_oo": 1 - op_d_ece_ratio,
        "cllr_op_oo": 1 - op_information_ratio,
        "g_d_ece": 10 * pp_d_ece_ratio.log10(),
        "g_cllr": 10 * pp_information_ratio.log10(),
    }
