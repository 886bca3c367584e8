"""Everything at once: the same numbers as one by one, and original speech scored once."""

import pytest
import torch
from cases import assert_same, embeddings, join
from reports import Everything, compute
from samples import people
from torch.testing import assert_close
from torchmetrics import MetricCollection

import vpmetrics as vp
from vpmetrics import VoicePrivacy
from vpmetrics._scores.registry import headline_keys


def test_collection_shares_one_copy_of_the_embeddings():
    batches = embeddings()
    classes = vp.DeIdentification, vp.VoiceDistinctiveness, vp.VoiceSimilarityMatrix, Everything
    collection = MetricCollection([make() for make in classes])
    for batch in batches:
        collection.update(**batch, is_reference=torch.arange(len(batch["speakers"])) % 2 == 0)
    assert len(collection.compute_groups) == 1
    assert collection.DeIdentification.original is collection.VoicePrivacy.original
    assert_close(collection.compute()["deid"], compute(vp.DeIdentification(), **join(batches)))


def test_settings_changed_between_epochs_take_effect():
    rows = join(embeddings())
    metric = Everything("geometric")
    compute(metric, **rows)
    metric.similarity = "sigmoid"
    metric.reset()
    assert_close(compute(metric, **rows)["deid"], compute(Everything("sigmoid"), **rows)["deid"])


def test_gradient_after_a_validation_in_inference_mode():
    rows = join(embeddings())
    metric = VoicePrivacy(bandwidth=0.1)
    with torch.inference_mode():
        compute(metric, **rows)
        metric.reset()
    protected = rows["protected"].clone().requires_grad_()
    metric(rows["original"], protected, rows["speakers"])["op_d_ece"].backward()
    assert protected.grad.isfinite().all()


def test_plot_without_the_keys_it_draws_says_which_it_needs():
    metric = vp.VoicePrivacy(metrics=["disclosure"], attacks=None)
    metric.update(torch.eye(4), torch.eye(4).flip(0), torch.tensor([0, 0, 1, 1]))
    with pytest.raises(
        ValueError,
        match=(
            "Expected the keys 'deid' and 'gvd' of system, which are drawn, but 'deid' is missing"
        ),
    ):
        metric.plot()


def test_plot_draws_the_trade_off_of_several_systems():
    metric = Everything()
    value = compute(metric, **join(embeddings()))
    _, ax = metric.plot(label="one")
    _, ax = metric.plot({"two": {**value, "deid": value["deid"] - 0.1}, "three": value}, ax=ax)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["one", "two", "three"]
    points = [line.get_xydata()[0].tolist() for line in ax.lines if line.get_gid() == "system"]
    first, second, _ = points
    assert first == pytest.approx([100 * value["deid"].item(), value["gvd"].item()])
    assert second[0] == pytest.approx(first[0] - 10)


@pytest.mark.parametrize("each", [5, 208])
@pytest.mark.parametrize("scoring", ["cosine", "dot", "euclidean"])
def test_identity_system_has_zero_deid_and_gvd(each, scoring):
    original, _, speakers = people(each=each, dtype=torch.float32)
    values = compute(VoicePrivacy(attacks=None, scoring=scoring), original, original, speakers)
    # Distances of many float32 rows depend on the order of a pair in their last digit.
    allowed = 1e-9
    if (each, scoring) == (208, "euclidean"):
        allowed = 1e-6
    assert abs(values["deid"]) <= allowed
    assert abs(values["gvd"]) <= 10 * allowed


def with_sessions():
    rows = join(embeddings())
    return rows | {"sessions": torch.arange(len(rows["speakers"])) % 2}


@pytest.mark.parametrize("has_sessions", [False, True])
def test_headline_has_29_keys_or_31_with_sessions_and_matches_the_full_report(has_sessions):
    rows = join(embeddings())
    if has_sessions:
        rows = with_sessions()
    everything = compute(Everything(), **rows)
    value = compute(VoicePrivacy(attacks=None), **rows)
    assert tuple(value) == headline_keys(has_attacks=False, has_sessions=has_sessions)
    assert_same(value, {key: everything[key] for key in value}, atol=0, rtol=0)
    keys = headline_keys(has_sessions=has_sessions)
    assert len(set(keys)) == len(keys) == (31 if has_sessions else 29)
    assert keys[0] == "disclosure"
    assert {"op_d_ece_strongest", "op_d_ece_chance"} <= set(keys)


@pytest.mark.parametrize(
    ("names", "parts"),
    [
        (("deid",), {"OO matrix", "OP matrix"}),
        (("pp_eer",), {"PP"}),
        (("op_link_rate", "op_d_diag"), {"OP matrix identification"}),
        (("g_cllr", "d_ece_op_oo"), {"OO", "OP", "PP"}),
        (("across_max_d", "op_c_ece"), {"across identification", "OP"}),
        (("worst_speaker_disclosure",), {"OP", "across"}),
        (("disclosure",), {"OP", "across"}),
        (("disclosure_conversation", "op_found_in_100"), {"OP", "across"}),
        (("oo_rate_3", "pp_singling_out_3_error"), {"OO population", "PP population"}),
    ],
)
def test_selected_metrics_compute_only_what_they_need(names, parts):
    rows = with_sessions()
    everything = compute(Everything(sizes=(3,)), **rows)
    metric = VoicePrivacy(sizes=(3,), attacks=None, metrics=list(names))
    chosen = compute(metric, **rows)
    assert tuple(chosen) == names
    assert_same(chosen, {key: everything[key] for key in names}, atol=0, rtol=0)
    made = set()
    for name, condition in metric.report().conditions.items():
        words = [name]
        for part in ("matrix", "identification", "strongest", "population"):
            if getattr(condition, part) is not None:
                words.append(part)
        made.add(" ".join(words))
    assert made == parts


def test_no_attack_is_fitted_for_metrics_without_attacks(monkeypatch):
    monkeypatch.setattr(VoicePrivacy, "_fit_attacks", lambda *_: pytest.fail("attacks were fitted"))
    compute(VoicePrivacy(metrics=["op_d_ece", "gvd"]), **join(embeddings()))


def test_changed_settings_and_loaded_states_take_effect():
    metric = Everything()
    rows = join(embeddings())
    metric.persistent(True)
    values = compute(metric, **rows)
    metric.slope = 1.0
    assert metric.report().scalars["op_alid"] != values["op_alid"]
    metric.slope = None
    other = Everything()
    other.persistent(True)
    compute(other, **{**rows, "protected": rows["original"]})
    metric.load_state_dict(other.state_dict())
    assert metric.report().scalars["deid"] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("intervals", [None, 0.5, 0.95])
def test_the_verdict_goes_by_95_percent_intervals_whatever_is_shown(intervals):
    metric = VoicePrivacy(attacks=None, intervals=intervals)
    metric.update(**join(embeddings()))
    risks = metric.report().risks
    shown = VoicePrivacy(attacks=None, intervals=0.95)
    shown.update(**join(embeddings()))
    values = shown.compute()
    for risk in risks:
        if risk.name == "found_in_100":
            key = f"{risk.condition.lower()}_found_in_100"
            everything = Everything(intervals=0.95, metrics=[key])
            everything.update(**join(embeddings()))
            ends = everything.compute()
            assert (risk.low, risk.high) == pytest.approx(
                (float(ends[f"{key}_low"]), float(ends[f"{key}_high"]))
            )
    assert {"found_in_100_low", "disclosure_conversation_high"} <= set(values)
