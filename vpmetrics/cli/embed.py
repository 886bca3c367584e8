"""``vpmetrics embed``: recordings to a file of embeddings, which ``evaluate`` reads."""

from __future__ import annotations

from argparse import Namespace

from rich.console import Console
from rich.markup import escape

from vpmetrics.cli.audio_inputs import F0_SEGMENT, audio_errors
from vpmetrics.cli.inputs import InputError, printable
from vpmetrics.cli.progress import show_progress


def embed(options: Namespace, console: Console) -> None:
    """Embed the recordings of a folder."""
    if options.out.suffix != ".npz":
        raise InputError("expected a name that ends in .npz", options.out)
    if options.out.exists():
        raise InputError("exists already; choose another name", options.out)
    with audio_errors(), show_progress(f"embedding {options.source} by {options.encoder}", 1.0) as advance:
        from vpmetrics.audio import embed_folder

        embedded = embed_folder(
            options.source,
            options.encoder,
            utt2spk=options.utt2spk,
            speaker_pattern=options.speaker_pattern,
            device=options.device,
            partial=options.partial,
            workers=options.workers,
            segment_seconds=F0_SEGMENT if options.encoder == "f0" else None,
            progress=lambda done, total, _left: advance(done / total),
        )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    embedded.save(options.out)
    rows, width = embedded.embeddings.shape
    for note in (*embedded.assumptions, *embedded.skipped):
        console.print(f"[yellow]note:[/] {escape(printable(note))}", soft_wrap=True)
    console.print(f"Wrote {escape(printable(str(options.out)))}: {rows:,} x {width}", soft_wrap=True)
