"""Embedding of recordings by the offline encoder, against the bare network on the same speech."""

import time

import numpy as np
import pytest
import soundfile
import torch

from bench.timing import peak_megabytes, report
from vpmetrics.audio import embed_folder, load_encoder

pytestmark = pytest.mark.bench
UTTERANCES = 2_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two thousand short utterances."""
    place = tmp_path_factory.mktemp("utterances")
    draw = np.random.default_rng(0)
    for number in range(UTTERANCES):
        path = place / f"p{number % 40}" / f"p{number % 40}_{number}.wav"
        path.parent.mkdir(exist_ok=True)
        soundfile.write(
            path, 0.1 * draw.standard_normal(int(16000 * draw.uniform(1.5, 3.0))), 16000
        )
    return place


@pytest.fixture
def one_thread():
    """Waiting threads of OpenMP spin: on a busy machine they would count as work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def processor_seconds(work, *args, **options):
    """Seconds of all threads together, which a busy machine hardly changes."""
    start = time.process_time()
    work(*args, **options)
    return time.process_time() - start


@pytest.mark.usefixtures("one_thread")
def test_two_thousand_utterances_cost_little_more_than_the_network(folder, tmp_path, monkeypatch):
    encoder, spectrograms = load_encoder("resemblyzer"), []
    run = encoder.embed_partials
    monkeypatch.setattr(
        encoder,
        "embed_partials",
        lambda partials: (spectrograms.append(partials), run(partials))[1],
    )
    embed_folder(folder, encoder)
    monkeypatch.undo()

    @torch.no_grad()
    def run_network():
        for partials in spectrograms:
            encoder.embed_partials(partials)

    turns = [
        (processor_seconds(run_network), processor_seconds(embed_folder, folder, encoder))
        for _ in range(3)
    ]
    theirs, ours = map(min, zip(*turns, strict=True))
    what = f"{UTTERANCES} utterances, {UTTERANCES / ours:.0f} a second of one core"
    assert report(what, ours, "the network", theirs) <= 1.3
    embed_folder(folder, encoder, cache=tmp_path)
    cached = processor_seconds(embed_folder, folder, encoder, cache=tmp_path)
    report("from the cache", cached, "the first run", ours)
    assert cached < 5


def test_memory_does_not_grow_with_the_number_of_recordings(folder):
    setup = f"""
import torch
from vpmetrics.audio import embed_recordings, list_recordings, load_encoder
torch.set_num_threads(1)
items = list_recordings({str(folder)!r}).items
encoder = load_encoder("resemblyzer")
embed_recordings(items[:300], encoder)
"""
    megabytes = peak_megabytes(setup, "embed_recordings(items[300:], encoder)")
    audio = 4 * 16000 * 2.25 * (UTTERANCES - 300) / 2**20
    print(
        f"\nmemory at its peak, 1,700 recordings after 300: {megabytes:.0f} MB more, of {audio:.0f}"
        " MB of speech"
    )
    assert megabytes < 0.5 * audio  # what it would hold otherwise
