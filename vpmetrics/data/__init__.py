"""The bundled voices, embeddings of 37 synthetic speakers, original and anonymised four ways.

A sampler draws batches by speaker.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from importlib.resources import as_file, files
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler

from vpmetrics._util.distributed import current_processes
from vpmetrics._util.validation import check_integers, check_whole_number
from vpmetrics._utterances.utterances import encode_column

__all__ = ["DemoVoices", "SpeakerBatchSampler", "demo_voices"]


class DemoVoices(NamedTuple):
    """Embeddings of 1036 recordings of 37 synthetic speakers.

    See ``README.md`` in this folder for how they were made.

    ``original`` ``(1036, 256)`` float32; ``protected``, as many rows for each of ``B2`` (McAdams,
    alpha = 0.8), ``B2r0`` and ``B2r1`` (one alpha per speaker, two draws) and ``B2u`` (one alpha
    per utterance); ``speakers``, ``utterances`` and ``sentences`` ``(1036,)`` int64;
    ``speaker_names``, ``engine:voice`` of each speaker number; ``alphas``, the McAdams coefficient
    of each row ``(1036,)`` float32 where it was drawn: the smaller, the further the formants were
    moved.
    """

    original: Tensor
    protected: dict[str, Tensor]
    speakers: Tensor
    utterances: Tensor
    sentences: Tensor
    speaker_names: tuple[str, ...]
    alphas: dict[str, Tensor]


def demo_voices() -> DemoVoices:
    """Load the bundled voices; nothing is downloaded.

    Example:
        >>> voices = demo_voices()
        >>> voices.original.shape, sorted(voices.protected)
        (torch.Size([1036, 256]), ['B2', 'B2r0', 'B2r1', 'B2u'])
    """
    with as_file(files(__package__) / "demo_voices.npz") as path, np.load(path) as arrays:
        return DemoVoices(
            torch.from_numpy(arrays["emb_O"]),
            {
                name: torch.from_numpy(arrays[f"emb_{name}"])
                for name in ("B2", "B2r0", "B2r1", "B2u")
            },
            torch.from_numpy(arrays["speaker"]).long(),
            torch.from_numpy(arrays["utterance"]).long(),
            torch.from_numpy(arrays["sentence"]).long(),
            tuple(map(str, arrays["speaker_name"])),
            {name: torch.from_numpy(arrays[f"alpha_{name}"]) for name in ("B2r0", "B2r1", "B2u")},
        )


class SpeakerBatchSampler(Sampler[list[int]]):
    r"""Draw batches with several utterances of several speakers.

    It is made for ``DataLoader(batch_sampler=...)``.

    The losses learn from pairs of one speaker. Shuffled batches hold hardly any: 32 rows of 1,000
    speakers have none in more than half of the batches.

    An epoch uses no utterance twice, in any process: the utterances of every speaker are shuffled
    and cut into chunks, and a batch takes one chunk each of the speakers with the most chunks left.
    What does not fill a chunk or a batch may be drawn in another epoch. A speaker with fewer than
    ``utterances`` contributes one chunk of all of them, a speaker with a single utterance none.

    Processes of ``torch.distributed`` draw the same epoch and share its batches equally. The order
    follows from ``seed`` and the epoch alone. Call :meth:`set_epoch` before every epoch, or all are
    alike; Lightning does so by itself, but needs ``Trainer(use_distributed_sampler=False)`` with
    more than one process.

    16 speakers of 8 utterances are enough for every loss of :mod:`vpmetrics.losses`. Prefer more
    speakers to more utterances; with two sessions per speaker, 4 utterances are the minimum. Twice
    the rows cost four times the scores.

    Args:
        speakers: Speaker of each row of the data set, ``(N,)``: integers or strings.
        speakers_per_batch: Number of speakers in a batch, at least 2.
        utterances: Number of utterances of each, at least 2.
        seed: Seed of the random order.

    Example:
        >>> sampler = SpeakerBatchSampler(
        ...     ["p225", "p226", "p227"] * 20, speakers_per_batch=2, utterances=4
        ... )
        >>> len(sampler)
        7
        >>> rows = next(iter(sampler))
        >>> (torch.tensor(rows) % 3).unique(return_counts=True)[1]
        tensor([4, 4])
    """

    def __init__(
        self,
        speakers: Tensor | Sequence[int] | Sequence[str] | np.ndarray[Any, Any],
        speakers_per_batch: int = 16,
        utterances: int = 8,
        seed: int = 0,
    ) -> None:
        labels = encode_column("speakers", speakers)
        check_integers("speakers", labels)
        if labels.ndim != 1:
            raise ValueError(
                f"Expected `speakers` to have shape (N,), but got {tuple(labels.shape)}."
            )
        check_whole_number("speakers_per_batch", speakers_per_batch, least=2)
        check_whole_number("utterances", utterances, least=2)
        check_whole_number("seed", seed, least=0)
        self.speakers_per_batch = speakers_per_batch
        self.utterances = utterances
        self.seed = seed
        self.epoch = 0
        _, self._speaker_index, counts = labels.cpu().unique(
            return_inverse=True, return_counts=True
        )
        self._speaker_chunks = torch.where(
            counts >= utterances, counts // utterances, (counts >= 2).long()
        )
        if self._count_total_batches() == 0:
            raise ValueError(
                f"Expected `speakers` to hold at least {speakers_per_batch} speakers with 2"
                f" utterances or more, but got {int((counts >= 2).sum())}."
            )

    @property
    def sampler(self) -> SpeakerBatchSampler:
        """Return itself: Lightning looks for ``set_epoch`` here."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Draw another epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Return the number of batches of this process in an epoch, the same in every process."""
        # Not in `__init__`: data sets are often made before the process group.
        return self._count_total_batches() // current_processes(None).world_size

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the rows of one batch after another."""
        processes = current_processes(None)
        if len(self) == 0:
            raise ValueError(
                f"Expected a batch for each of {processes.world_size} processes, but `speakers`"
                f" fill only {self._count_total_batches()}."
            )
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        # The row numbers of each chunk, shuffled within speakers; chunks of a speaker follow one
        # another.
        shuffled = torch.randperm(len(self._speaker_index), generator=generator)
        rows = shuffled[self._speaker_index[shuffled].argsort(stable=True)]
        speaker = self._speaker_index[rows]
        counts = torch.bincount(speaker)
        first_row = counts.cumsum(0) - counts
        position = torch.arange(len(rows)) - first_row[speaker]  # within the speaker
        is_kept = position // self.utterances < self._speaker_chunks[speaker]
        sizes = counts.clamp(max=self.utterances).repeat_interleave(self._speaker_chunks)
        chunks = torch.split(rows[is_kept], sizes.tolist())
        # The index of each chunk of each batch.
        remaining = self._speaker_chunks.clone()
        first_chunk = remaining.cumsum(0) - remaining
        chunks_of_batch: list[list[int]] = []
        for _ in range(self._count_total_batches()):
            # The fraction breaks ties among speakers with equally many remaining chunks at random.
            priority = remaining + torch.rand(
                len(remaining), generator=generator, dtype=torch.float64
            )
            chosen = priority.topk(self.speakers_per_batch).indices
            remaining[chosen] -= 1
            chunks_of_batch.append((first_chunk[chosen] + remaining[chosen]).tolist())
        order = torch.randperm(len(chunks_of_batch), generator=generator).tolist()
        for batch in processes.share(order)[: len(self)]:
            yield torch.cat([chunks[chunk] for chunk in chunks_of_batch[batch]]).tolist()

    def _count_total_batches(self) -> int:
        """Return how many batches all processes can fill in an epoch.

        Each has at most one chunk of a speaker.
        """

        def lacks_chunks(num_batches: int) -> bool:
            num_chunks = int(self._speaker_chunks.clamp(max=num_batches).sum())
            return num_chunks < num_batches * self.speakers_per_batch

        most = int(self._speaker_chunks.sum()) // self.speakers_per_batch
        return bisect_left(range(1, most + 1), True, key=lacks_chunks)
