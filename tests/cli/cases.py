"""The command run as a user runs it, files to run it on, and what the library says of them."""

import gzip
import json
import math
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from vpmetrics import VoicePrivacy
from vpmetrics.cli import main
from vpmetrics.report.trial_report import ScoredTrials

NAMES = ("anna", "ben", "cleo", "dora", "emil", "finn")


def expected_scalars(voices, system="B2", attacks="standard"):
    metric = VoicePrivacy(attacks=attacks, intervals=0.95, metrics="all")
    metric.update(voices.original, voices.protected[system], voices.speakers)
    return metric.compute()


def assert_scalars(got, expected, atol=1e-6):
    assert set(got) == set(expected), set(got) ^ set(expected)
    for key, value in expected.items():
        if key.endswith("tag"):
            assert got[key] == "0ABCDEF"[int(value)], key
        elif key.endswith("worst_speaker"):
            # speakers may be numbered in a file
            assert got[key] in (NAMES[int(value)], str(int(value))), key
        elif math.isnan(float(value)):
            assert got[key] is None, key
        else:
            assert float(got[key]) == pytest.approx(float(value), abs=atol), key


def run(*arguments, expect=0):
    assert main([str(argument) for argument in arguments]) == expect


def results_of(path):
    # strict JSON has no NaN
    return json.loads(path.read_text(encoding="utf-8"), parse_constant=pytest.fail)


def systems_of(path):
    return results_of(path)["systems"]


def scalars_of(path, number=0):
    return systems_of(path)[number]["scalars"]


def write_npz(folder, voices):
    np.savez(
        folder / "all.npz",
        emb_O=voices.original,
        anonymised=voices.protected["B2"],
        spk=voices.speakers,
    )
    return [folder / "all.npz"]


def write_utt2spk(folder, voices):
    pairs = zip(voices.utterances, voices.names, strict=True)
    (folder / "utt2spk").write_text(
        "".join(f"{utterance} {name}\n" for utterance, name in reversed(list(pairs)))
    )
    return folder / "utt2spk"


def trials_of(voices, condition, system="B2"):
    """All trials of a condition as the suite forms them, in random order."""
    sides = {"O": voices.original, "P": voices.protected[system]}
    enrolment = normalize(sides[condition[0]].double())
    test = normalize(sides[condition[1]].double())
    scores = enrolment @ test.T
    trials = []
    for i in range(len(scores)):
        for j in range(len(scores)):
            # Pairs of one side have no direction, and nothing is compared with itself.
            if i < j or (condition == "OP" and i != j):
                trials.append((i, j, 8 * float(scores[i, j])))
    order = np.random.default_rng(0).permutation(len(trials))
    return [trials[place] for place in order]


def write_scores(path, voices, trials, fourth=False):
    """Write lines ``enrol trial score``, with the label as a fourth column if asked for."""
    lines = []
    for i, j, score in trials:
        label = label_of(voices, i, j) if fourth else ""
        lines.append(f"{voices.utterances[i]} {voices.utterances[j]} {score!r} {label}\n")
    text = "".join(lines)
    if path.suffix == ".gz":
        with gzip.open(path, "wt") as file:
            file.write(text)
    else:
        path.write_text(text)
    return path


def label_of(voices, i, j):
    if voices.speakers[i] == voices.speakers[j]:
        return "target"
    return "nontarget"


def write_key(path, voices):
    """A key of all pairs in an order of its own, so larger than any one set of scores."""
    names = voices.utterances
    lines = []
    for j in range(60):
        for i in range(60):
            lines.append(f"{names[i]}\t{names[j]}\t{label_of(voices, i, j)}\n")
    path.write_text("".join(lines))
    return path


def write_conditions(folder, voices):
    """Options for a key, and for score files of all conditions."""
    options = ["--key", write_key(folder / "key", voices)]
    for name in ("OO", "OP", "PP"):
        options += [
            f"--{name.lower()}",
            write_scores(folder / name, voices, trials_of(voices, name)),
        ]
    return options


def write_embeddings(path, speakers=10, each=4):
    draw = np.random.default_rng(0)
    original = draw.normal(size=(speakers * each, 8)) + draw.normal(size=(speakers, 8)).repeat(
        each, 0
    )
    protected = original + draw.normal(size=original.shape)
    np.savez(
        path, original=original, protected=protected, speakers=np.arange(speakers).repeat(each)
    )
    return path


def scored(distance=1.0):
    is_target = torch.arange(300) % 5 == 0
    scores = torch.randn(300, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return ScoredTrials(scores + distance * is_target, is_target)


def tensors_of(voices, trials):
    rows, columns, scores = zip(*trials, strict=True)
    rows = torch.tensor(rows)
    columns = torch.tensor(columns)
    return (
        torch.tensor(scores, dtype=torch.float64),
        voices.speakers[rows] == voices.speakers[columns],
    )


class Page(HTMLParser):
    """Tags, pictures and text of a page, whose tags are all closed."""

    def __init__(self, text):
        super().__init__()
        self.open = []
        self.tags = []
        self.texts = []
        self.feed(text)
        self.close()
        assert self.open == []
        self.images = [attributes for tag, attributes in self.tags if tag == "img"]

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.open += [tag] * (tag not in ("img", "meta"))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data.strip())
