"""``vpmetrics embed``: recordings to a file of embeddings."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from vpmetrics._util.inputs import InputError
from vpmetrics._util.scalar import printable
from vpmetrics.cli.options import EmbedOptions
from vpmetrics.cli.recordings import F0_SEGMENT_SECONDS, translate_audio_errors
from vpmetrics.readers.progress import show_progress
from vpmetrics.report.folder import check_output_file


def embed(options: EmbedOptions, console: Console) -> None:
    """Embed the recordings of a folder into a file, which ``evaluate`` reads."""
    if options.out.suffix != ".npz":
        raise InputError("expected a name that ends in .npz", options.out)
    if options.out.exists():
        raise InputError("exists already; choose another name", options.out)
    check_output_file(options.out)
    segment_seconds = None
    if options.encoder == "f0":
        segment_seconds = F0_SEGMENT_SECONDS
    with (
        translate_audio_errors(),
        show_progress(f"embedding {options.source} by {options.encoder}", 1.0) as set_done,
    ):
        from vpmetrics.audio import embed_folder

        embedded = embed_folder(
            options.source,
            options.encoder,
            utt2spk=options.speakers,
            speaker_pattern=options.speaker_pattern,
            device=options.device,
            partial=options.partial,
            segment_seconds=segment_seconds,
            progress=lambda done, total, _left: set_done(done / total),
        )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    embedded.save(options.out)
    rows, width = embedded.embeddings.shape
    for note in (*embedded.assumptions, *embedded.skipped):
        console.print(f"[yellow]note:[/] {escape(printable(note))}", soft_wrap=True)
    console.print(
        f"Wrote {escape(printable(str(options.out)))}: {rows:,} x {width}", soft_wrap=True
    )
