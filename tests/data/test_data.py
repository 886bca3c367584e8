"""Batches by speaker: their content, how processes share them, and wrong arguments."""

from collections import Counter

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from training import QUIET, both_packages

from vpmetrics import data
from vpmetrics._util.distributed import Processes
from vpmetrics.data import SpeakerBatchSampler

UNEVEN = torch.tensor([9] * 100 + [4] * 9 + [7] * 8 + [1] * 5 + [2] * 1 + [3] * 16)


def draw_batches(speakers, speakers_per_batch=2, utterances=4, epoch=0, **settings):
    sampler = SpeakerBatchSampler(speakers, speakers_per_batch, utterances, **settings)
    sampler.set_epoch(epoch)
    drawn = list(sampler)
    assert len(drawn) == len(sampler)
    return drawn


def as_process(monkeypatch, process, processes):
    monkeypatch.setattr(data, "current_processes", lambda _: Processes(process, processes))


@pytest.mark.parametrize("epoch", range(5))
def test_unbalanced_speakers_fill_the_most_batches(epoch):
    # Chunks: 25 of speaker 9, 2 of 4 and of 7, 1 of 1, 4 of 3, none of 2. Speaker 9 needs a partner
    # in every batch.
    drawn = draw_batches(UNEVEN, epoch=epoch)
    assert len(drawn) == 9
    for rows in drawn:
        assert UNEVEN[rows].unique(return_counts=True)[1].tolist() == [4, 4]
    # Two or three utterances are a chunk, too; one is not.
    assert sorted(draw_batches(torch.tensor([1] * 4 + [2] * 3 + [3]))[0]) == list(range(7))


def test_every_utterance_can_be_sampled_and_partners_change():
    speakers = torch.arange(37) % 3
    used = {
        row for epoch in range(20) for rows in draw_batches(speakers, epoch=epoch) for row in rows
    }
    assert used == set(range(37))
    speakers = torch.arange(40).repeat_interleave(40)
    drawn = draw_batches(speakers, 8, 8)
    assert len({tuple(speakers[rows].unique().tolist()) for rows in drawn}) == len(drawn)


def test_the_order_follows_from_seed_and_epoch():
    speakers = torch.arange(400) % 20
    one, again, *others = (
        draw_batches(speakers, seed=a, epoch=b) for a, b in ((3, 2), (3, 2), (3, 1), (4, 2))
    )
    assert one == again
    assert one not in others
    assert (
        draw_batches(speakers.tolist())
        == draw_batches(1000 - 3 * (20 - speakers))
        == draw_batches(speakers)
    )


@pytest.mark.parametrize("convert", [list, tuple, np.array])
def test_batches_hold_equally_many_utterances_of_speakers_with_names(convert):
    names = [f"p{number}" for number in (torch.arange(400) % 20).tolist()]
    drawn = draw_batches(convert(names), 4, 5)
    assert len(drawn) == 20
    for rows in drawn:
        assert sorted(Counter(names[row] for row in rows).values()) == [5] * 4


@pytest.mark.parametrize("processes", [2, 3])
def test_processes_share_an_epoch_in_equal_parts(monkeypatch, processes):
    speakers = torch.arange(400) % 20
    every_batch = draw_batches(speakers)
    shares = []
    for process in range(processes):
        as_process(monkeypatch, process, processes)
        shares.append(draw_batches(speakers))
    assert {len(share) for share in shares} == {50 // processes}
    batches = [tuple(batch) for share in shares for batch in share]
    assert len({row for batch in batches for row in batch}) == 50 // processes * processes * 8
    assert set(batches) <= set(map(tuple, every_batch))
    as_process(monkeypatch, 0, 3)
    with pytest.raises(
        ValueError, match="Expected a batch for each of 3 processes, but `speakers` fill only 2"
    ):
        draw_batches(torch.arange(16) % 2)


@both_packages
def test_a_trainer_sets_the_epoch(pl):
    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(()))
            self.seen = []

        def training_step(self, batch):
            self.seen.append((self.current_epoch, batch[0].tolist()))
            return self.weight.square()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    speakers = torch.arange(60) % 6
    module = Module()
    loader = DataLoader(
        TensorDataset(torch.arange(60)), batch_sampler=SpeakerBatchSampler(speakers, 3, 4)
    )
    pl.Trainer(max_epochs=2, logger=False, enable_checkpointing=False, **QUIET).fit(module, loader)
    assert module.seen == [
        (epoch, rows) for epoch in (0, 1) for rows in draw_batches(speakers, 3, 4, epoch=epoch)
    ]
