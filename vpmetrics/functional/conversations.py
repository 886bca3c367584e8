"""Conversations: several utterances of a speaker, average_rows, as those who listen for longer than a sentence have."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vpmetrics._engine.population import average_rows, deal_places, form_conversations
from vpmetrics._engine.utterances import row_keys
from vpmetrics._engine.validation import check_embeddings, check_integers, check_shape, check_whole


class Conversations(NamedTuple):
    """Averaged utterances, as ``update`` of every embedding metric takes them.

    ``original`` and ``protected`` ``(C, D)``, ``speakers`` and ``sessions`` ``(C,)``; None where there were none.
    """

    original: Tensor | None
    protected: Tensor | None
    speakers: Tensor
    sessions: Tensor | None


def conversations(
    original: Tensor | None,
    protected: Tensor | None,
    speakers: Tensor,
    utterances: int,
    sessions: Tensor | None = None,
) -> Conversations:
    """Average utterances of a speaker and session, in disjoint groups: what longer speech gives away.

    Any metric of embeddings then measures what an attacker learns who hears that much: disclosure, ranks, attacks.

    Args:
        original: Floating tensor of shape ``(B, D)``, or None.
        protected: Floating tensor of shape ``(B, D)``, or None; row i is the protected version of row i.
        speakers: Integer tensor of shape ``(B,)``.
        utterances: How many to average. Those left over in the end are dropped.
        sessions: Integer tensor of shape ``(B,)``: only utterances of one session are averaged.

    Returns:
        ``Conversations(original, protected, speakers, sessions)``, row i of both sides from the same utterances. Which
        ones go together is drawn at random, but always the same for the same utterances, in whatever order they come.

    Example:
        >>> original = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 5.0]])
        >>> conversations(original, None, torch.tensor([4, 4, 9]), utterances=2).original
        tensor([[2., 0.]])
    """
    check_embeddings(original, protected, speakers)
    check_whole("utterances", utterances, least=1)
    columns = [speakers]
    if sessions is not None:
        check_integers("sessions", sessions)
        check_shape("sessions", sessions, tuple(speakers.shape), "the shape of `speakers`")
        columns.append(sessions)
    group = torch.unique(torch.stack(columns), dim=1, return_inverse=True)[1]
    keys = torch.stack([row_keys(side) for side in (original, protected) if side is not None]).sum(dim=0)
    members = form_conversations(group, deal_places(group, keys), utterances)
    first = members[:, 0]
    return Conversations(
        None if original is None else average_rows(original, members),
        None if protected is None else average_rows(protected, members),
        speakers[first],
        None if sessions is None else sessions[first],
    )
