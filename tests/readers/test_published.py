"""Readers of published results, on small files of the same form."""

import numpy as np
import polars as pl
import pytest

from vpmetrics import LocalInformationDisclosure, SimilarityRankDisclosure
from vpmetrics._util.inputs import InputError
from vpmetrics.readers.published import (
    compare_with_published,
    find_published_systems,
    measure_published_system,
    read_published_curves,
    read_published_table,
)

NAMES = [f"{speaker}-{part}" for speaker in "abcdef" for part in range(8)]


def write_clone(folder, voices_of, has_speakers):
    """A folder for each system: embeddings of utterances, those enrolled, and whose they are."""
    for name, vectors in voices_of.items():
        (folder / name).mkdir(parents=True)
        table = {"utterance_id": NAMES, "embedding": vectors.tolist()}
        table |= {"speaker_id": [text[0] for text in NAMES]} if has_speakers else {}
        pl.DataFrame(table).write_parquet(folder / name / "embeddings.parquet")
        enrolled = [text for text in NAMES if int(text[2:]) < 4]
        lines = {"enrolments": enrolled, "trials": [text for text in NAMES if text not in enrolled]}
        for title, some in lines.items():
            text = "".join(f"{name},{name[0]}\n" for name in some)
            (folder / name / f"{title}.csv").write_text(f"utterance_id,speaker_id\n{text}")
        everyone = "".join(f"{name},{name[0]}\n" for name in NAMES)
        (folder / name / "all_utterances.csv").write_text(f"utterance_id,speaker_id\n{everyone}")
    return folder


@pytest.fixture
def voices_of():
    draw = np.random.default_rng(0)
    centres = np.repeat(draw.normal(size=(6, 8)), 8, axis=0)
    return {"B3": centres + draw.normal(size=(48, 8)), "B4": draw.normal(size=(48, 8))}


@pytest.mark.parametrize("has_speakers", [True, False])
def test_systems_are_measured_as_by_the_metrics(tmp_path, voices_of, has_speakers):
    systems = find_published_systems(write_clone(tmp_path, voices_of, has_speakers))
    assert [system.name for system in systems] == ["B3", "B4"]
    for system in systems:
        values = measure_published_system(system)
        vectors = voices_of[system.name].astype("f")
        speakers = np.repeat(np.arange(6), 8)
        for metric in (SimilarityRankDisclosure(), LocalInformationDisclosure()):
            metric.update(
                protected=vectors, speakers=speakers, is_reference=np.tile(np.arange(8) < 4, 6)
            )
            for key, value in metric.compute().items():
                assert values[key] == pytest.approx(float(value), abs=1e-5), key
        assert 0 <= values["eer"] <= 0.5


def test_ours_stand_beside_the_table(tmp_path):
    (tmp_path / "Table4.csv").write_text(
        "System,ALID [bit],EER (%),Mean-D\nB3,0.52 ± 0.01,31.5,\nB9,1,2,3\n"
    )
    published = read_published_table(tmp_path / "Table4.csv")
    assert published == {
        "B3": {"alid": 0.52, "eer": 31.5},
        "B9": {"alid": 1, "eer": 2, "mean_d": 3},
    }
    (one,) = compare_with_published({"b3": {"alid": 0.5, "pdr": 1.0}, "B4": {"alid": 1}}, published)
    assert (one.system, one.measure, one.published) == ("b3", "alid", 0.52)
    assert one.difference == pytest.approx(-0.02)


def test_curves_are_read(tmp_path):
    header = "attacker,L,enrollment_speakers,curve_type,linkability_mean,linkabilitystd,chance"
    (tmp_path / "linkability_results.csv").write_text(
        f"{header}\noriginal,1,20,orig,0.82,0.002,0.05\n"
    )
    header = "attacker,L,enrollment_speakers,curve_type,eer_mean,eer_std,chance"
    (tmp_path / "eer_results.csv").write_text(f"{header}\nSEMI-INFORMED,3,40,anon,0.3,0.01,0.5\n")
    eer, linkability = read_published_curves(tmp_path)
    assert (eer.measure, eer.attacker, eer.utterances, eer.people, eer.mean) == (
        "eer",
        "semi_informed",
        3,
        40,
        0.3,
    )
    assert (linkability.measure, linkability.mean, linkability.deviation) == (
        "linkability",
        0.82,
        0.002,
    )


def test_what_is_missing_is_named(tmp_path):
    for read in (find_published_systems, read_published_curves):
        with pytest.raises(InputError, match="but found none"):
            read(tmp_path)
    (tmp_path / "eer_results.csv").write_text("attacker,L\nx,1\n")
    with pytest.raises(
        InputError, match=r"eer_results\.csv:2: expected columns attacker,L,enrollment_speakers"
    ):
        read_published_curves(tmp_path)
    with pytest.raises(InputError, match=r"Table4\.csv: cannot be read as CSV"):
        read_published_table(tmp_path / "Table4.csv")
