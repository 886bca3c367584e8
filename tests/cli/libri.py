"""The layout of libri_test in the challenge of 2020, with voices that are drawn."""

from pathlib import Path
from typing import NamedTuple

import kaldiio
import numpy as np

SETS = ("enrolls", "trials_f", "trials_m")
CONDITIONS = {"oo": ("", ""), "op": ("", "_anon"), "pp": ("_anon", "_anon")}


class Libri(NamedTuple):
    """The folder of all files, vectors of utterances by side, and trials by sex."""

    folder: Path
    enrolled: list[str]
    vectors: dict[str, dict[str, np.ndarray]]
    trials: dict[str, list[tuple[str, str, bool]]]


def write_libri_test(folder):
    """438 enrolment utterances of 29 speakers, 734 and 762 trial utterances of 20 women and 20 men.

    Binary archives.
    """
    draw = np.random.default_rng(0)
    speakers = {"f": [f"{1000 + k}" for k in range(20)], "m": [f"{2000 + k}" for k in range(20)]}
    enrolled_speakers = {"f": speakers["f"][:16], "m": speakers["m"][:13]}
    utterances = {}
    sets = {"enrolls": (enrolled_speakers["f"] + enrolled_speakers["m"], 438)}
    sets |= {"trials_f": (speakers["f"], 734), "trials_m": (speakers["m"], 762)}
    for name, (some, count) in sets.items():
        chapter = "134686" if name == "enrolls" else "134691"
        utterances[name] = [
            f"{some[k % len(some)]}-{chapter}-{k // len(some):04d}" for k in range(count)
        ]
    voices = {speaker: draw.normal(size=32) for each in speakers.values() for speaker in each}
    everyone = [name for names in utterances.values() for name in names]
    original = {
        u: (voices[u.split("-")[0]] + 1.5 * draw.normal(size=32)).astype("f") for u in everyone
    }
    protected = {u: (0.6 * original[u] + 1.2 * draw.normal(size=32)).astype("f") for u in everyone}
    for side, vectors in (("", original), ("_anon", protected)):
        for name in SETS:
            data = folder / f"libri_test_{name}{side}"
            data.mkdir(parents=True)
            order = draw.permutation(utterances[name]).tolist()  # no two files in the same order
            kaldiio.save_ark(
                str(data / "xvector.ark"),
                {u: vectors[u] for u in order},
                scp=str(data / "xvector.scp"),
            )
    trials = {
        sex: [
            (s, u, u.startswith(f"{s}-"))
            for s in enrolled_speakers[sex]
            for u in utterances[f"trials_{sex}"]
        ]
        for sex in "fm"
    }
    lines = {
        "enrolls": utterances["enrolls"],
        "utt2spk": [f"{u} {u.split('-')[0]}" for u in sorted(everyone)],
        "spk2gender": [f"{speaker} {sex}" for sex, names in speakers.items() for speaker in names],
        "weights": ["f 0.6", "m 0.4"],
    }
    for sex, rows in trials.items():
        lines[f"trials_{sex}"] = [
            f"{s} {u} {'target' if same else 'nontarget'}" for s, u, same in rows
        ]
    for name, rows in lines.items():
        (folder / name).write_text("".join(f"{row}\n" for row in rows))
    return Libri(folder, utterances["enrolls"], {"": original, "_anon": protected}, trials)


def expected_scores(libri, sex, condition):
    """Cosines of the mean of a speaker's enrolment utterances with each trial utterance.

    In plain NumPy.
    """
    enrol, probe = (libri.vectors[side] for side in CONDITIONS[condition])
    means = {}
    for speaker in sorted({s for s, _, _ in libri.trials[sex]}):
        own = [enrol[u] for u in libri.enrolled if u.startswith(f"{speaker}-")]
        means[speaker] = np.mean(np.array(own, dtype=np.float64), axis=0)
    left = np.array([means[speaker] for speaker, *_ in libri.trials[sex]])
    right = np.array([probe[utterance] for _, utterance, _ in libri.trials[sex]], dtype=np.float64)
    scores = (left * right).sum(1) / np.sqrt((left**2).sum(1) * (right**2).sum(1))
    return scores, np.array([same for *_, same in libri.trials[sex]])
