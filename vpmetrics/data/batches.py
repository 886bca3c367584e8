"""Batches to train anonymisers on: several utterances of several speakers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, distributed
from torch.utils.data import Sampler

from vpmetrics._checks import check_integers, check_whole


class SpeakerBatchSampler(Sampler[list[int]]):
    r"""Batches of ``utterances`` rows each of ``speakers_per_batch`` speakers, for ``DataLoader(batch_sampler=...)``.

    A loss of pairs learns from pairs of one speaker. Shuffled batches hold hardly any: 32 rows of 1,000 speakers have
    none in more than half of the batches. Here every batch has the same number.

    An epoch uses no utterance twice, in any process: the utterances of every speaker are shuffled and cut into groups,
    and a batch takes one group each of speakers with the most groups left, so all are used up evenly. What does not
    fill a group or a batch is left out and has its chance in another epoch. A speaker with fewer than ``utterances``
    takes part with all they have; one with a single utterance does not.

    Processes of ``torch.distributed`` draw the same epoch and share its batches, as many for each. The order follows
    from ``seed`` and the epoch alone. Call :meth:`set_epoch` before every epoch, or all are alike; Lightning does so
    by itself, but needs ``Trainer(use_distributed_sampler=False)`` when there is more than one process.

    On sizes: 16 speakers of 8 utterances are enough for every loss of :mod:`vpmetrics.losses`. Prefer more speakers to
    more utterances, for an attack fitted on half of a batch learns from speakers; with two sessions per speaker, 4
    utterances are the least. The losses look at all pairs, so twice the rows cost four times the scores.

    Args:
        speakers: Speaker of each row of the data set, ``(N,)`` integers.
        speakers_per_batch: How many speakers a batch has, 2 at least.
        utterances: How many utterances of each, 2 at least.
        seed: Where the random order starts.

    Example:
        >>> sampler = SpeakerBatchSampler(torch.arange(60) % 6, speakers_per_batch=3, utterances=4)
        >>> len(sampler)
        4
        >>> rows = next(iter(sampler))
        >>> (torch.tensor(rows) % 6).unique(return_counts=True)[1]
        tensor([4, 4, 4])
    """

    def __init__(
        self, speakers: Tensor | Sequence[int], speakers_per_batch: int = 16, utterances: int = 8, seed: int = 0
    ) -> None:
        speakers = torch.as_tensor(speakers)
        check_integers("speakers", speakers)
        if speakers.ndim != 1:
            raise ValueError(f"Expected `speakers` to have shape (N,), but got {tuple(speakers.shape)}.")
        check_whole("speakers_per_batch", speakers_per_batch, least=2)
        check_whole("utterances", utterances, least=2)
        check_whole("seed", seed, least=0)
        self.speakers_per_batch, self.utterances, self.seed, self.epoch = speakers_per_batch, utterances, seed, 0
        _, self._speaker_of_row, counts = speakers.cpu().unique(return_inverse=True, return_counts=True)
        self._groups_of_speaker = torch.where(counts >= utterances, counts // utterances, (counts >= 2).long())
        if self._count_batches() == 0:
            raise ValueError(
                f"Expected `speakers` to hold at least {speakers_per_batch} speakers with 2 utterances or more, "
                f"but got {int((counts >= 2).sum())}."
            )

    @property
    def sampler(self) -> SpeakerBatchSampler:
        """Itself: where Lightning looks for ``set_epoch``."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Draw another epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Batches of this process in an epoch, as many as of every other."""
        _, processes = _place()
        return self._count_batches() // processes

    def __iter__(self) -> Iterator[list[int]]:
        """Rows of one batch after the other."""
        process, processes = _place()
        number = len(self)
        if number == 0:
            raise ValueError(
                f"Expected a batch for each of {processes} processes, but `speakers` fill only {self._count_batches()}."
            )
        draw = torch.Generator().manual_seed(self.seed + self.epoch)
        groups = self._cut_groups(draw)
        batches = self._deal_groups(draw)
        batches = batches[torch.randperm(len(batches), generator=draw)]
        for batch in batches[process::processes][:number].tolist():
            yield torch.cat([groups[group] for group in batch]).tolist()

    def _count_batches(self) -> int:
        """The most batches that can be filled: no speaker gives a batch more than one group."""
        groups, least, most = self._groups_of_speaker, 0, int(self._groups_of_speaker.sum()) // self.speakers_per_batch
        while least < most:
            middle = (least + most + 1) // 2
            fills = int(groups.clamp(max=middle).sum()) >= middle * self.speakers_per_batch
            least, most = (middle, most) if fills else (least, middle - 1)
        return least

    def _cut_groups(self, draw: torch.Generator) -> tuple[Tensor, ...]:
        """Rows of every group, those of a speaker one after the other."""
        shuffled = torch.randperm(len(self._speaker_of_row), generator=draw)
        order = shuffled[self._speaker_of_row[shuffled].argsort(stable=True)]
        speaker = self._speaker_of_row[order]
        counts = torch.bincount(speaker)
        place = torch.arange(len(order)) - (counts.cumsum(0) - counts)[speaker]
        kept = place // self.utterances < self._groups_of_speaker[speaker]
        sizes = counts.clamp(max=self.utterances).repeat_interleave(self._groups_of_speaker)
        return torch.split(order[kept], sizes.tolist())

    def _deal_groups(self, draw: torch.Generator) -> Tensor:
        """Groups of every batch, ``(batches, speakers_per_batch)``: of the speakers with the most left."""
        left = self._groups_of_speaker.clone()
        first = left.cumsum(0) - left
        batches = []
        for _ in range(self._count_batches()):
            order = left + torch.rand(len(left), generator=draw, dtype=torch.float64)  # ties by lot
            chosen = order.topk(self.speakers_per_batch).indices
            left[chosen] -= 1
            batches.append(first[chosen] + left[chosen])
        return torch.stack(batches)


def _place() -> tuple[int, int]:
    """Rank of this process and number of all; asked when needed, for data sets are often older than the group."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1
