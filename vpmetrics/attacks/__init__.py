"""Attacks, fitted on other speakers than they attack: what protected speech discloses beyond the cosine.

An attack learns with ``fit(original, protected, speakers)`` and changes what is compared with ``attack(original,
protected)``. :data:`STANDARD` is the battery that metrics try: every attack in it discloses more than all others on
some data. To add one, see :class:`Attack`, and :class:`LinearAttack` for one that follows from means and covariances.

Example:
    An attacker who has the anonymiser learns from pairs of other speakers, and reaches a higher disclosure:

    >>> import torch
    >>> from torch.nn.functional import normalize
    >>> from vpmetrics import ZebraDisclosure
    >>> from vpmetrics.data import demo_voices
    >>> voices = demo_voices()
    >>> is_training, protected = voices.speakers % 2 == 0, voices.protected["B2u"]
    >>> speakers = voices.speakers[~is_training]
    >>> trials = ~torch.eye(len(speakers), dtype=torch.bool)
    >>> for attack in (Plain(), CanonicalCorrelation()):
    ...     _ = attack.fit(voices.original[is_training], protected[is_training], voices.speakers[is_training])
    ...     o, p = attack.attack(voices.original[~is_training], protected[~is_training])
    ...     scores = normalize(o) @ normalize(p).T
    ...     disclosed = ZebraDisclosure()(scores[trials], (speakers[:, None] == speakers)[trials])
    ...     print(f"{attack.name}: {disclosed['d_ece']:.2f} bit")
    plain: 0.18 bit
    canonical correlation: 0.32 bit
"""

from vpmetrics.attacks.base import Attack, LinearAttack, Maps, TunedAttack
from vpmetrics.attacks.kernel import EvenKernelRidge, KernelRidge, OuterProducts
from vpmetrics.attacks.linear import (
    PLDA,
    AbsoluteCosine,
    CanonicalCorrelation,
    Centred,
    LikelihoodRatio,
    Plain,
    Procrustes,
    RidgeToOriginal,
    RidgeToProtected,
    SquaresToProtected,
    WithinClassWhitening,
)

__all__ = [
    "PLDA",
    "STANDARD",
    "AbsoluteCosine",
    "Attack",
    "CanonicalCorrelation",
    "Centred",
    "EvenKernelRidge",
    "KernelRidge",
    "LikelihoodRatio",
    "LinearAttack",
    "Maps",
    "OuterProducts",
    "Plain",
    "Procrustes",
    "RidgeToOriginal",
    "RidgeToProtected",
    "SquaresToProtected",
    "TunedAttack",
    "WithinClassWhitening",
]

STANDARD: tuple[Attack, ...] = (
    Plain(),
    AbsoluteCosine(),
    WithinClassWhitening(),
    PLDA(),
    Procrustes(),
    CanonicalCorrelation(),
    LikelihoodRatio(),
    SquaresToProtected(),
    KernelRidge(),
    EvenKernelRidge(),
    OuterProducts(),
)
"""The battery: every attack once, not fitted. Simple attacks come first: of equally strong ones the first is chosen."""
