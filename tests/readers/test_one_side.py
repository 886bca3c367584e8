"""Protected embeddings alone, as caches of attackers and the challenges from 2024 on have them.

Only PP is measured.
"""

import math

import numpy as np
import pytest
from cli.cases import run, systems_of
from cli.libri import SETS
from readers.test_trial_protocol import options_of

from vpmetrics.suite import VoicePrivacy

NOTE = "no original embeddings were given: only PP is measured, since OP, DeID and G_VD need them"


def is_known(scalars, key):
    return scalars.get(key) is not None and not math.isnan(scalars[key])


def test_protected_embeddings_alone_give_pp(tmp_path, evaluate, voices):
    path = tmp_path / "protected.npz"
    np.savez(
        path,
        protected=voices.protected["B2"],
        speakers=voices.speakers,
        utterances=voices.utterances,
    )
    (system,) = evaluate("--protected", path, "--no-attacks")
    metric = VoicePrivacy(metrics=["pp_d_ece", "pp_eer", "pp_mean_d"], attacks=None)
    metric.update(None, voices.protected["B2"], voices.speakers)
    for key, value in metric.compute().items():
        assert system["scalars"][key] == pytest.approx(float(value), abs=1e-9), key
    assert system["notes"] == [NOTE]
    assert not is_known(system["scalars"], "op_d_ece")
    assert not is_known(system["scalars"], "deid")


def test_trials_and_enrolments_without_originals_give_pp(evaluate, libri, libri_measures):
    (system,) = evaluate(*options_of(libri, original=None))
    for sex in "fm":
        for name, value in libri_measures[sex, "pp"].items():
            assert system["groups"][sex]["scalars"][f"pp_{name}"] == pytest.approx(value, abs=1e-9)
        assert not is_known(system["groups"][sex]["scalars"], "op_eer")
    assert system["notes"] == [NOTE]


def test_attacks_on_pp_are_tried_without_originals(evaluate, libri):
    (system,) = evaluate(*options_of(libri, original=None, **{"no-attacks": None}))
    assert system["scalars"]["pp_d_ece_strongest"] > 0
    assert [note for note in system["notes"] if "G_VD" in note] == [NOTE]


def test_one_side_without_names_or_speakers_says_what_is_missing(tmp_path, capsys):
    np.save(tmp_path / "p.npy", np.eye(4))
    run("evaluate", "--protected", tmp_path / "p.npy", expect=2)
    assert "--speakers" in capsys.readouterr().err
    np.savez(tmp_path / "p.npz", a=np.eye(4)[0], b=np.eye(4)[1])
    run("evaluate", "--protected", tmp_path / "p.npz", expect=2)
    assert "give --utt2spk FILE" in capsys.readouterr().err


def test_systems_without_originals_are_compared_by_pp(tmp_path, voices):
    for name in ("B2", "B2r0"):
        np.savez(
            tmp_path / f"{name}.npz", protected=voices.protected[name], speakers=voices.speakers
        )
    run(
        "compare",
        tmp_path / "B2.npz",
        tmp_path / "B2r0.npz",
        "--no-attacks",
        "--json",
        tmp_path / "r.json",
    )
    for system in systems_of(tmp_path / "r.json"):
        assert is_known(system["scalars"], "pp_d_ece")
        assert not is_known(system["scalars"], "op_d_ece")
        assert NOTE in system["notes"]


def test_speakers_of_librispeech_are_inferred_from_names(evaluate, libri):
    protected = libri.folder / f"libri_test_{SETS[0]}_anon" / "xvector.ark"
    (system,) = evaluate("--protected", protected, "--no-attacks")
    assert system["speakers"] == 29
    assert any(
        "speakers are the first part of names of utterances" in note for note in system["notes"]
    )
