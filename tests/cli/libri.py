"""The layout of libri_test in the challenge of 2020, with voices that are drawn."""

from pathlib import Path
from typing import NamedTuple

import kaldiio
import numpy as np

SETS = ("enrolls", "trials_f", "trials_m")
NUM_UTTERANCES = {"enrolls": 438, "trials_f": 734, "trials_m": 762}
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
    speakers_of_set = {
        "enrolls": enrolled_speakers["f"] + enrolled_speakers["m"],
        "trials_f": speakers["f"],
        "trials_m": speakers["m"],
    }
    utterances = {}
    for name, count in NUM_UTTERANCES.items():
        utterances[name] = _name_utterances(name, speakers_of_set[name], count)
    voices = {speaker: draw.normal(size=32) for speaker in speakers["f"] + speakers["m"]}
    original = {}
    protected = {}
    everyone = [*utterances["enrolls"], *utterances["trials_f"], *utterances["trials_m"]]
    for name in everyone:
        voice = voices[name.split("-")[0]]
        original[name] = (voice + 1.5 * draw.normal(size=32)).astype("f")
    for name in everyone:
        protected[name] = (0.6 * original[name] + 1.2 * draw.normal(size=32)).astype("f")
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
    trials = _list_trials(enrolled_speakers, utterances)
    lines = _list_lines(utterances, speakers, trials)
    for name, rows in lines.items():
        (folder / name).write_text("".join(f"{row}\n" for row in rows))
    return Libri(folder, utterances["enrolls"], {"": original, "_anon": protected}, trials)


def _list_trials(enrolled_speakers, utterances):
    """All pairs of an enrolled speaker and a trial utterance of the same sex, with labels."""
    trials = {}
    for sex, names in enrolled_speakers.items():
        trials[sex] = []
        for speaker in names:
            for utterance in utterances[f"trials_{sex}"]:
                trials[sex].append((speaker, utterance, utterance.startswith(f"{speaker}-")))
    return trials


def _list_lines(utterances, speakers, trials):
    """The lines of every text file, by its name."""
    everyone = [*utterances["enrolls"], *utterances["trials_f"], *utterances["trials_m"]]
    lines = {
        "enrolls": utterances["enrolls"],
        "utt2spk": [f"{name} {name.split('-')[0]}" for name in sorted(everyone)],
        "spk2gender": [],
        "weights": ["f 0.6", "m 0.4"],
    }
    for sex, names in speakers.items():
        lines["spk2gender"] += [f"{speaker} {sex}" for speaker in names]
    for sex, rows in trials.items():
        lines[f"trials_{sex}"] = []
        for speaker, utterance, is_target in rows:
            label = "target" if is_target else "nontarget"
            lines[f"trials_{sex}"].append(f"{speaker} {utterance} {label}")
    return lines


def _name_utterances(set_name, speakers, count):
    """Names of utterances, one speaker after the other, of a chapter of their own."""
    chapter = "134691"
    if set_name == "enrolls":
        chapter = "134686"
    names = []
    for k in range(count):
        names.append(f"{speakers[k % len(speakers)]}-{chapter}-{k // len(speakers):04d}")
    return names


def expected_scores(libri, sex, condition):
    """Cosines of the mean of a speaker's enrolment utterances with each trial utterance.

    In plain NumPy.
    """
    enrolment_side, test_side = CONDITIONS[condition]
    enrol = libri.vectors[enrolment_side]
    probe = libri.vectors[test_side]
    means = {}
    for speaker in sorted({s for s, _, _ in libri.trials[sex]}):
        own = [enrol[u] for u in libri.enrolled if u.startswith(f"{speaker}-")]
        means[speaker] = np.mean(np.array(own, dtype=np.float64), axis=0)
    left = np.array([means[speaker] for speaker, *_ in libri.trials[sex]])
    right = np.array([probe[utterance] for _, utterance, _ in libri.trials[sex]], dtype=np.float64)
    scores = (left * right).sum(1) / np.sqrt((left**2).sum(1) * (right**2).sum(1))
    return scores, np.array([same for *_, same in libri.trials[sex]])
