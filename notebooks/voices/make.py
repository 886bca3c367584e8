"""Make ``voices.ogg`` and ``voices.csv`` beside this file, from five voices of two synthesisers;
see ``README.md``.

Needs Debian's flite, festival and festvox-kdlpc16k, and from PyPI numpy, scipy and soundfile.
"""

import csv
import itertools
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import soundfile
from scipy.signal import resample_poly

RATE = 16000
HERE = Path(__file__).parent
VOICES = {"flite": ("kal16", "awb", "rms", "slt"), "festival": ("ked_diphone",)}
LENGTHS = (84, 93, 104, 116)  # of the vocal tract, in percent of the voice as it comes
EACH = 6
WHO = ("A neighbour", "My brother", "The painter", "An old friend", "The captain", "Her daughter", "The baker")
DID = ("bought", "carried", "described", "forgot", "returned", "borrowed")
WHAT = ("a yellow lamp", "four wooden chairs", "the broken clock", "a jar of honey", "our winter coats")


def spoken(engine, voice, text):
    """Samples of a sentence."""
    with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        if engine == "flite":
            subprocess.run(["flite", "-voice", voice, "-t", text, "-o", file.name], check=True)
        else:
            command = ["text2wave", "-eval", f"(voice_{voice})", "-o", file.name]
            subprocess.run(command, input=text.encode(), check=True)
        samples, rate = soundfile.read(file.name)
    return resample_poly(samples, RATE, rate)


def trimmed(samples, margin=800):
    """Without the silence before and after, which says which synthesiser it is."""
    loud = np.flatnonzero(np.abs(samples) > 0.02 * np.abs(samples).max())
    return samples[max(loud[0] - margin, 0) : loud[-1] + margin]


def main():
    draw = np.random.default_rng(0)
    sentences = [" ".join(words) + "." for words in itertools.product(WHO, DID, WHAT)]
    rows, clips, start = [], [], 0
    for engine, voices in VOICES.items():
        for voice, percent in itertools.product(voices, LENGTHS):
            for text in draw.choice(sentences, EACH, replace=False):
                clip = trimmed(resample_poly(spoken(engine, voice, text), percent, 100))
                clip = clip * (0.05 / clip.std()) + 1e-4 * draw.standard_normal(len(clip))
                rows.append((f"{voice}-{percent}", start, start + len(clip), text))
                clips.append(clip)
                start += len(clip)
    soundfile.write(HERE / "voices.ogg", np.concatenate(clips), RATE, "OPUS", compression_level=0.97)
    with (HERE / "voices.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("speaker", "start", "end", "text"), *rows])


if __name__ == "__main__":
    main()
