"""From recordings to embeddings: audio files and their pairs, speaker encoders, pitch histograms.

Two folders of recordings become the arguments of every embedding metric::

    import vpmetrics as vp
    from vpmetrics.audio import embed_pairs, pair_recordings

    voices = embed_pairs(pair_recordings("original", "protected"), encoder="resemblyzer")
    metric = vp.VoicePrivacy()
    metric.update(voices.original, voices.protected, voices.speakers)
    print(metric.report())

Encoders are trusted: model files and models of a hub can run code of their authors when they are
loaded. Recordings, embeddings, scores and tables never run anything.

Requires the extra ``audio``; ``f0_histograms`` the extra ``f0``.
"""

from vpmetrics.audio.embedding import embed_folder, embed_pairs, embed_recordings, f0_histograms
from vpmetrics.audio.encoders import as_encoder, load_encoder
from vpmetrics.audio.reading import AudioError, read_audio, resample
from vpmetrics.audio.recordings import Recording, list_recordings, pair_recordings
from vpmetrics.audio.speaker_encoder import SpeakerEncoder

__all__ = [
    "AudioError",
    "Recording",
    "SpeakerEncoder",
    "as_encoder",
    "embed_folder",
    "embed_pairs",
    "embed_recordings",
    "f0_histograms",
    "list_recordings",
    "load_encoder",
    "pair_recordings",
    "read_audio",
    "resample",
]
