"""Everything at once: the same numbers as one by one, and original speech scored once."""

from __future__ import annotations

import pytest
import torch
from cases import embeddings, join
from torch.testing import assert_close
from torchmetrics import MetricCollection

import vpmetrics as vp
from vpmetrics import _trials, suite
from vpmetrics.attacks import Plain, RidgeToOriginal
from vpmetrics.suite import VoicePrivacy


def alone(metric, rows):
    metric.update(**rows)
    return metric.compute()


def test_each_scalar_is_that_of_its_own_class():
    rows = join(embeddings())
    value = alone(VoicePrivacy(), rows)
    assert_close(value["deid"], alone(vp.DeIdentification(), rows))
    assert_close(value["gvd"], alone(vp.VoiceDistinctiveness(), rows))
    for condition in ("OO", "OP", "PP"):
        prefix = condition.lower()
        for key, metric in {
            "min_cllr": vp.MinCllr(),
            "cllr": vp.Cllr(),
            "eer": vp.EqualErrorRate(),
            "linkability": vp.Linkability(),
        }.items():
            assert_close(value[f"{prefix}_{key}"], alone(vp.EmbeddingTrials(metric, condition), rows))
        for metric in (
            vp.EmbeddingTrials(vp.ZebraDisclosure(), condition),
            vp.SimilarityRankDisclosure(condition=condition),
            vp.LocalInformationDisclosure(condition),
        ):
            for key, expected in alone(metric, rows).items():
                assert_close(value[f"{prefix}_{key}"], expected)


def test_original_speech_is_scored_once(monkeypatch):
    walked = []
    original = suite.report_condition
    monkeypatch.setattr(suite, "report_condition", lambda *args: walked.append(args[1].name) or original(*args))
    rows = join(embeddings())
    order = torch.randperm(150, generator=torch.Generator().manual_seed(0))
    metric = VoicePrivacy()
    first = alone(metric, rows)
    assert walked == ["OO", "OP", "PP"]
    metric.reset()
    second = alone(metric, {key: value[order] for key, value in rows.items()})
    assert walked[3:] == ["OP", "PP"]
    assert_close(second, first)
    metric.reset()
    alone(metric, {**rows, "original": rows["original"] + 0.01})
    assert walked[5:] == ["OO", "OP", "PP"]


@pytest.mark.parametrize(("scoring", "times"), [("cosine", 2), ("euclidean", 3)])
def test_each_side_is_laid_out_once_and_its_rows_are_numbered_once(monkeypatch, scoring, times):
    """Distances are taken about the mean of the references, which of protected speech is not always the same."""
    found = []

    def watched(name, make):
        return lambda *args: found.append((name, args[0])) or make(*args)

    monkeypatch.setattr(_trials.rows, "lay_out", watched("laid out", _trials.rows.lay_out))
    monkeypatch.setattr(_trials.utterances, "row_keys", watched("numbered", _trials.utterances.row_keys))
    rows = join(embeddings())
    alone(VoicePrivacy(attacks=None, scoring=scoring), rows)
    assert [name for name, _ in found].count("laid out") == times
    numbered = [vectors for name, vectors in found if name == "numbered"]
    assert all(sum(torch.equal(vectors, rows[side]) for vectors in numbered) == 1 for side in ("original", "protected"))


def test_one_copy_in_a_collection():
    rows = embeddings()
    collection = MetricCollection(
        [vp.DeIdentification(), vp.VoiceDistinctiveness(), vp.VoiceSimilarityMatrix(), VoicePrivacy()]
    )
    for batch in rows:
        collection.update(**batch, is_reference=torch.arange(len(batch["speakers"])) % 2 == 0)
    assert len(collection.compute_groups) == 1
    assert collection.DeIdentification.original is collection.VoicePrivacy.original
    assert_close(collection.compute()["deid"], alone(vp.DeIdentification(), join(rows)))


def test_a_lone_speaker_is_nan_and_one_warning():
    metric = VoicePrivacy()
    metric.update(torch.randn(6, 3), torch.randn(6, 3), torch.full((6,), 2))
    with pytest.warns(UserWarning, match="non-target") as caught:
        value = metric.compute()
    assert len(caught) == 1
    assert all(entry.isnan() for key, entry in value.items() if not key.endswith("tag"))
    assert value["op_tag"] == -1


def test_keys_are_flat_scalars_and_always_the_same():
    value = alone(VoicePrivacy(), join(embeddings()))
    assert all(entry.dim() == 0 for entry in value.values())
    with pytest.warns(UserWarning, match="There are no"):
        nothing = alone(VoicePrivacy(), {"original": torch.randn(2, 3), "speakers": torch.tensor([1, 2])})
    assert set(nothing) == set(value)


@pytest.mark.parametrize(
    ("names", "parts"),
    [
        (("deid",), {"OO matrix", "OP matrix"}),
        (("pp_eer",), {"PP"}),
        (("op_link_rate", "op_d_diag"), {"OP matrix identification"}),
        (("g_cllr", "d_ece_op_oo"), {"OO", "OP", "PP"}),
        (("op_eer_strongest",), {"OP strongest"}),
        (("across_max_d", "op_c_ece"), {"across identification", "OP"}),
        (("oo_rate_3", "pp_singling_out_3_error"), {"OO rates", "PP rates"}),
    ],
)
def test_a_choice_of_scalars_costs_what_it_needs_and_changes_none(names, parts):
    rows = join(embeddings())
    rows["sessions"] = torch.arange(len(rows["speakers"])) % 2
    attacks = [Plain(), RidgeToOriginal()]
    everything = alone(VoicePrivacy(sizes=(3,), attacks=attacks), rows)
    metric = VoicePrivacy(sizes=(3,), attacks=attacks, metrics=names)
    chosen = alone(metric, rows)
    assert tuple(chosen) == names
    for name in names:
        assert_close(chosen[name], everything[name], rtol=0, atol=0)
    kinds = ("matrix", "identification", "strongest", "rates")
    made = {
        " ".join([name, *(kind for kind in kinds if getattr(known, kind) is not None)])
        for name, known in metric.report().conditions.items()
    }
    assert made == parts


def test_no_attack_is_fitted_for_a_choice_without_attacks(monkeypatch):
    monkeypatch.setattr(VoicePrivacy, "_attackers", lambda *_: pytest.fail("attackers were made"))
    alone(VoicePrivacy(metrics=["op_d_ece", "gvd"]), join(embeddings()))


def test_a_choice_of_what_there_is_not_is_refused():
    with pytest.raises(ValueError, match=r"`metrics` to name scalars of .*, but got 'op_dece'\. Closest: 'op_d_ece'"):
        VoicePrivacy(metrics=["op_dece"])
    with pytest.raises(ValueError, match=r"but got 'op_d_ece_strongest'\. Closest"):
        VoicePrivacy(metrics=["op_d_ece_strongest"], attacks=None)
    with pytest.raises(TypeError, match="`metrics` to be a sequence of names, but got 'deid'"):
        VoicePrivacy(metrics="deid")


def test_settings_changed_between_epochs_are_heeded():
    rows = join(embeddings())
    metric = VoicePrivacy("geometric")
    alone(metric, rows)
    metric.similarity = "sigmoid"
    metric.reset()
    assert_close(alone(metric, rows)["deid"], alone(VoicePrivacy("sigmoid"), rows)["deid"])


def test_gradient_after_a_validation_in_inference_mode():
    rows = join(embeddings())
    metric = VoicePrivacy(bandwidth=0.1)
    with torch.inference_mode():
        alone(metric, rows)
        metric.reset()
    protected = rows["protected"].clone().requires_grad_()
    metric(rows["original"], protected, rows["speakers"])["op_d_ece"].backward()
    assert protected.grad.isfinite().all()


def test_path_of_a_training_is_drawn():
    value = alone(VoicePrivacy(), join(embeddings()))
    _, ax = VoicePrivacy().plot([value, {**value, "deid": value["deid"] / 2}])
    assert "DeID" in ax.get_xlabel()


def test_trade_off_figure_takes_several_systems():
    metric = VoicePrivacy()
    metric.update(**join(embeddings()))
    value = metric.compute()
    _, ax = metric.plot(label="one")
    figure, ax = metric.plot({"two": {**value, "deid": value["deid"] - 0.1}, "three": value}, ax=ax)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["one", "two", "three"]
    points = [line.get_xydata()[0].tolist() for line in ax.lines if line.get_gid() == "system"]
    assert points[0] == pytest.approx([100 * value["deid"].item(), value["gvd"].item()])
    assert points[1][0] == pytest.approx(points[0][0] - 10)
    assert figure is ax.figure


@pytest.mark.parametrize("rows", [60, 2500])
@pytest.mark.parametrize("scoring", ["cosine", "dot", "euclidean"])
def test_a_system_that_does_nothing_changes_nothing_however_many_utterances(rows, scoring):
    draw = torch.Generator().manual_seed(0)
    speakers = torch.arange(rows) % 12
    original = torch.randn(12, 8, generator=draw)[speakers] + torch.randn(rows, 8, generator=draw)
    metric = VoicePrivacy(attacks=None, scoring=scoring)
    metric.update(original, original, speakers)
    values = metric.compute()
    assert abs(values["deid"]) <= 1e-9
    assert abs(values["gvd"]) <= 1e-9


def test_a_report_after_compute_is_what_that_has_found_until_anything_changes(monkeypatch):
    walked = []
    original = suite.report_condition
    monkeypatch.setattr(suite, "report_condition", lambda *args: walked.append(args[1].name) or original(*args))
    metric, rows = VoicePrivacy(attacks=[Plain()]), join(embeddings())
    values = alone(metric, rows)
    assert_close(metric.report().scalars, values, rtol=0, atol=0, equal_nan=True)
    assert walked == ["OO", "OP", "PP"]
    metric.observe(rows["original"], rows["protected"], rows["speakers"])
    metric.report()
    assert walked[3:] == ["OP", "PP"]
    metric.slope = 1.0
    assert metric.report().scalars["op_alid"] != values["op_alid"]
    metric.slope = None
    metric.update(**{key: value + 100 if key == "speakers" else value for key, value in rows.items()})
    assert metric.report().scalars["op_d_ece"] != values["op_d_ece"]
    assert_close(metric.compute(), metric.report().scalars, rtol=0, atol=0, equal_nan=True)
