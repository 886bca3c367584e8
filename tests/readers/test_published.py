"""Readers of published results, on small files of the same form."""

import numpy as np
import polars as pl
import pytest
from reference.local import local_information_disclosure
from reference.rank import rank_histogram
from reference.verification import equal_error_rate, min_cllr
from reference.zebra import logistic_regression

from vpmetrics._util.inputs import InputError
from vpmetrics.readers.published import (
    compare_with_published,
    find_published_matrices,
    find_published_systems,
    measure_published_system,
    read_published_curves,
    read_published_table,
)

SPEAKERS = {"dev": ["101", "102", "103", "104", "105"], "test": ["201", "202", "203", "204", "205"]}
NUM_UTTERANCES = 12  # of a speaker, the first four of them for enrolment
SYSTEMS = {"B3": 1.0, "T8-5": 3.0}  # noise beside voices of length 1


def name_utterances(split, is_enrolment):
    numbers = range(4) if is_enrolment else range(4, NUM_UTTERANCES)
    return [(f"{who}-1-{number:04d}", who) for who in SPEAKERS[split] for number in numbers]


def draw_system(noise, seed):
    """An embedding of each utterance of both splits, by name; their lengths differ."""
    draw = np.random.default_rng(seed)
    vectors = {}
    for split, speakers in SPEAKERS.items():
        voices = {who: draw.normal(size=16) for who in speakers}
        for is_enrolment in (True, False):
            for name, who in name_utterances(split, is_enrolment):
                vector = voices[who] + noise * draw.normal(size=16)
                vectors[name] = draw.uniform(1, 9) * vector
    return vectors


def write_clone(folder, headings=("utterance_id", "speaker_id")):
    """A clone: embeddings of each system in a folder of its own, and lists that all share."""
    vectors_of = {name: draw_system(noise, seed=3) for name, noise in SYSTEMS.items()}
    for name, vectors in vectors_of.items():
        path = folder / "data/experiments" / name / "embeddings/embeddings.parquet"
        path.parent.mkdir(parents=True)
        table = {
            "utterance_id": list(vectors),
            "speaker_id": [utterance.split("-")[0] for utterance in vectors],
            "embedding": [vector.tolist() for vector in vectors.values()],
        }
        pl.DataFrame(table).write_parquet(path)
    (folder / "data/shared").mkdir()
    for split in SPEAKERS:
        for kind, is_enrolment in (("enrolls", True), ("trials", False)):
            header = ("utterance_id", "speaker_id") if is_enrolment else headings
            lines = [header, *name_utterances(split, is_enrolment)]
            text = "".join(f"{','.join(line)}\n" for line in lines)
            (folder / f"data/shared/{split}_{kind}.csv").write_text(text)
    return vectors_of


def unit(vector):
    return vector / np.linalg.norm(vector)


def score_split(vectors, split):
    """Cosines of each test with the mean of a speaker's unit enrolment vectors, in plain NumPy."""
    enrolled = name_utterances(split, is_enrolment=True)
    references = [
        unit(np.mean([unit(vectors[name]) for name, who in enrolled if who == speaker], axis=0))
        for speaker in SPEAKERS[split]
    ]
    tested = name_utterances(split, is_enrolment=False)
    scores = np.array(
        [[unit(vectors[name]) @ reference for reference in references] for name, _ in tested]
    )
    return scores, np.array([SPEAKERS[split].index(who) for _, who in tested])


def standardise_by_sample_deviation(scores):
    centred = scores - scores.mean(1, keepdims=True)
    return centred / scores.std(1, ddof=1, keepdims=True)


def expected_measures(vectors):
    """What the authors describe.

    Rows standardised by the sample deviation, a balanced logistic regression on development
    speakers, and bits of the softmax.
    """
    dev, dev_index = score_split(vectors, "dev")
    is_target = np.arange(dev.shape[1]) == dev_index[:, None]
    z = standardise_by_sample_deviation(dev)
    w = logistic_regression(z[is_target], z[~is_target])[0]
    scores, index = score_split(vectors, "test")
    is_target = np.arange(scores.shape[1]) == index[:, None]
    trials = (scores.flatten(), is_target.flatten().astype(int))
    # The reference standardises by the deviation of the population.
    num_references = scores.shape[1]
    slope = w * np.sqrt((num_references - 1) / num_references)
    local = local_information_disclosure(scores, index, slope)
    id_rate = rank_histogram(scores, index)[0] / len(index)
    verification = {"eer": equal_error_rate(*trials), "min_cllr": min_cllr(*trials)}
    return {**local, "w": w, "id_rate": id_rate, **verification}


@pytest.mark.parametrize("headings", [("utterance_id", "speaker_id"), ("trial_id", "trial_spk")])
def test_systems_are_measured_as_their_authors_describe(tmp_path, headings):
    vectors_of = write_clone(tmp_path, headings)
    systems = find_published_systems(tmp_path)
    assert [system.name for system in systems] == ["B3", "T8-5"]
    for system in systems:
        values = measure_published_system(system)
        for key, value in expected_measures(vectors_of[system.name]).items():
            assert values[key] == pytest.approx(value, abs=2e-5), (system.name, key)


def test_listed_utterances_without_embeddings_are_left_out(tmp_path):
    write_clone(tmp_path)
    with (tmp_path / "data/shared/test_trials.csv").open("a") as file:
        file.write("201-9-9999,201\n")
    system = find_published_systems(tmp_path)[0]
    more = measure_published_system(system)
    write_clone(tmp_path / "again")
    assert measure_published_system(find_published_systems(tmp_path / "again")[0]) == more


def test_without_development_lists_there_is_no_local_information(tmp_path):
    write_clone(tmp_path)
    (tmp_path / "data/shared/dev_trials.csv").unlink()
    values = measure_published_system(find_published_systems(tmp_path)[0])
    assert "alid" not in values
    assert values["id_rate"] > 0


def test_lists_of_a_system_come_before_shared_ones(tmp_path):
    write_clone(tmp_path)
    own = tmp_path / "data/experiments/B3"
    for kind in ("enrolls", "trials"):
        text = (tmp_path / f"data/shared/test_{kind}.csv").read_text()
        (own / f"test_{kind}.csv").write_text(text)
    first, second = find_published_systems(tmp_path)
    assert first.test.trials == own / "test_trials.csv"
    assert second.test.trials == tmp_path / "data/shared/test_trials.csv"


def test_tests_of_speakers_who_are_not_enrolled_are_an_error(tmp_path):
    write_clone(tmp_path)
    with (tmp_path / "data/shared/test_trials.csv").open("a") as file:
        file.write("101-1-0007,101\n")
    with pytest.raises(InputError, match=r"tests of enrolled speakers, but '101' is not in test_"):
        measure_published_system(find_published_systems(tmp_path)[0])
    for path in (tmp_path / "data/shared").iterdir():
        path.unlink()
    with pytest.raises(InputError, match=r"expected shared/test_enrolls\.csv and test_trials\.csv"):
        find_published_systems(tmp_path)


def test_ours_stand_beside_the_table(tmp_path):
    """The heading of the authors' table; their Cllr is that after isotonic regression."""
    (tmp_path / "Table4.csv").write_text(
        "Experiment,EER,Cllr,ALID,PDR,NDR,LID+,LID-,LID_max\n"
        "B3,0.24,0.72,1.41,0.84,0.16,1.94,-1.30,4.54\nplain,0.00,0.01,4.85,1.00,0.00,4.85,,4.86\n"
    )
    published = read_published_table(tmp_path / "Table4.csv")
    names = ["raw_eer", "min_cllr", "alid", "pdr", "ndr", "lid_pos", "lid_neg", "lid_max"]
    assert list(published["B3"]) == names
    assert "lid_neg" not in published["plain"]
    ours = {"b3": {"alid": 1.5, "lid_neg": -1.25, "link_rate": 1.0}, "B4": {"alid": 1}}
    first, second = compare_with_published(ours, published)
    assert (first.system, first.measure, first.published) == ("b3", "alid", 1.41)
    assert first.difference == pytest.approx(0.09)
    assert (second.measure, second.published) == ("lid_neg", -1.30)


def test_percentages_become_shares(tmp_path):
    (tmp_path / "t.csv").write_text("System,ALID [bit],EER (%),Mean-D\nB3,0.52 ± 0.01,31.5,\n")
    assert read_published_table(tmp_path / "t.csv") == {"B3": {"alid": 0.52, "raw_eer": 0.315}}


def test_score_matrices_are_named_by_attacker_and_length(tmp_path):
    for name in ("scores_semi_informed_L30.npy", "scores_original_L1.npy", "scores_other.npy"):
        (tmp_path / name).touch()
    found = [(matrix.attacker, matrix.utterances) for matrix in find_published_matrices(tmp_path)]
    assert found == [("original", 1), ("semi_informed", 30)]


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
    for read in (find_published_systems, find_published_matrices, read_published_curves):
        with pytest.raises(InputError, match="but found none"):
            read(tmp_path)
    (tmp_path / "eer_results.csv").write_text("attacker,L\nx,1\n")
    with pytest.raises(
        InputError, match=r"eer_results\.csv:2: expected columns attacker,L,enrollment_speakers"
    ):
        read_published_curves(tmp_path)
    with pytest.raises(InputError, match=r"Table4\.csv: cannot be read as CSV"):
        read_published_table(tmp_path / "Table4.csv")
