"""Invalid arguments raise an error that names them, and leave the state of a metric unchanged."""

import copy
import inspect

import pytest
import torch
from cases import embeddings, scores
from reports import compute
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAUROC

import vpmetrics as vp
from vpmetrics import functional as F
from vpmetrics.attacks import Plain
from vpmetrics.scoring import PLDA

BINNING = (vp.ZebraDisclosure, vp.MinCllr, vp.EqualErrorRate, vp.Linkability)
SMOOTH = (vp.ZebraDisclosure, vp.MinCllr, vp.EqualErrorRate, vp.DeIdentification, vp.VoicePrivacy)
SLOPED = (vp.LocalInformationDisclosure, vp.VoicePrivacy)
NAN, INFINITY = float("nan"), float("inf")


def of_each(metrics, *rows):
    return [(metric, *row) for metric in metrics for row in rows]


INVALID = [
    (vp.Cllr, {"thresholds": 64}, TypeError, "Cllr takes no `thresholds`: four sums"),
    (vp.Cllr, {"score_range": (0, 1)}, TypeError, "Cllr takes no `score_range`: four sums"),
    (vp.Cllr, {"bandwidth": 0.1}, TypeError, "Cllr takes no `bandwidth`: the value is smooth"),
    (vp.Linkability, {"bandwidth": 0.1}, TypeError, "Linkability takes no `bandwidth`: the bins"),
    (vp.CalibrationDistortion, {"bandwidth": 0.1}, TypeError, "CalibrationDistortion takes no `bandwidth`: one batch"),
    (vp.CalibrationDistortion, {"calibration": True}, ValueError, "`calibration` to be one of 'linear', 'isotonic'"),
    (vp.CalibrationDistortion, {"thresholds": 64}, ValueError, "Unexpected keyword arguments: `thresholds`"),
    *of_each(
        BINNING,
        ({"thresholds": True}, TypeError, "`thresholds` to be None, a number of bins or a tensor"),
        ({"thresholds": 2.5}, TypeError, "`thresholds` to be None, a number of bins or a tensor"),
        ({"thresholds": 1}, ValueError, "`thresholds` to be at least 2 bins, but got 1"),
        ({"thresholds": torch.tensor([1, 2])}, TypeError, "`thresholds` to have a floating dtype"),
        ({"thresholds": torch.tensor(1.0)}, ValueError, r"`thresholds` to have shape \(edges,\), but got \(\)"),
        ({"thresholds": torch.tensor([1.0, 0.0])}, ValueError, "finite and strictly ascending"),
        ({"thresholds": torch.tensor([0.0, NAN])}, ValueError, "finite and strictly ascending"),
        ({"thresholds": torch.tensor([-INFINITY, 0.0])}, ValueError, "finite and strictly ascending"),
        ({"score_range": (0, 1)}, ValueError, "`score_range` only together with `thresholds` as a number"),
        ({"thresholds": 8, "score_range": 5}, TypeError, "`score_range` to be two numbers, but got 5"),
        ({"thresholds": 8, "score_range": (0, 1, 2)}, TypeError, "`score_range` to be two numbers"),
        ({"thresholds": 8, "score_range": "01"}, TypeError, "`score_range` to be two numbers"),
        ({"thresholds": 8, "score_range": (False, True)}, TypeError, "`score_range` to be two numbers"),
        ({"thresholds": 8, "score_range": (1, 0)}, ValueError, "`score_range` to be two finite ascending numbers"),
        ({"thresholds": 8, "score_range": (0, NAN)}, ValueError, "`score_range` to be two finite ascending numbers"),
        ({"thresholds": 8, "score_range": (1, 1 + 1e-15)}, ValueError, "`score_range` to be wide enough for 8 bins"),
    ),
    *of_each(
        SMOOTH,
        ({"bandwidth": "x"}, TypeError, "`bandwidth` to be a float or None, but got str"),
        ({"bandwidth": True}, TypeError, "`bandwidth` to be a float or None, but got bool"),
        ({"bandwidth": 0}, ValueError, "`bandwidth` to be positive and finite, but got 0"),
        ({"bandwidth": NAN}, ValueError, "`bandwidth` to be positive and finite, but got nan"),
        ({"bandwidth": 0.1, "dist_sync_on_step": True}, ValueError, "`dist_sync_on_step` only without `bandwidth`"),
    ),
    (vp.MinCllr, {"bandwidth": 0.1, "thresholds": 8}, ValueError, "`bandwidth` only without `thresholds`"),
    *of_each(
        SLOPED,
        ({"slope": "x"}, TypeError, "`slope` to be a number or None, but got 'x'"),
        ({"slope": True}, TypeError, "`slope` to be a number or None, but got True"),
        ({"slope": NAN}, ValueError, "`slope` to be finite, but got nan"),
        ({"slope": torch.tensor(INFINITY)}, ValueError, "`slope` to be finite, but got inf"),
        ({"slope": torch.ones(2)}, TypeError, "`slope` to be a number or None"),
    ),
    (vp.VoicePrivacy, {"bandwidth": 0.1, "attacks": [Plain()]}, ValueError, "`attacks` only without `bandwidth`"),
    *of_each(
        (vp.VoicePrivacy,),
        ({"metrics": ["op_dece"]}, ValueError, r"`metrics` to name .*, but got 'op_dece'\. Closest: 'op_d_ece'"),
        ({"metrics": ["op_d_ece_strongest"], "attacks": None}, ValueError, r"got 'op_d_ece_strongest'\. Closest"),
        ({"metrics": "deid"}, ValueError, "`metrics` to be one of 'headline', 'all', but got 'deid'"),
        ({"metrics": 3}, TypeError, "`metrics` to be a sequence of names, but got 3"),
    ),
    *of_each(
        (vp.ReidentificationRate, vp.SinglingOut),
        ({"sizes": (0,)}, ValueError, "Expected `sizes`"),
        ({"utterances": 0}, ValueError, "Expected `utterances`"),
        ({"attack": 3}, TypeError, "Expected `attack`"),
    ),
    (vp.ReidentificationRate, {"accumulated": "probe"}, ValueError, "Expected `accumulated`"),
    (vp.SinglingOut, {"condition": "within"}, ValueError, "Expected `condition`"),
    (vp.SinglingOut, {"draws": 1}, ValueError, "Expected `draws` to be at least 2"),
    (vp.SinglingOut, {"intervals": 0.95}, TypeError, "no `intervals`: without a speaker other sets of people"),
    (vp.VoiceSimilarityMatrix, {"intervals": 0.95}, (TypeError, ValueError), "intervals"),
    (vp.EmbeddingTrials, {"metric": vp.MinCllr(), "intervals": 0.95}, (TypeError, ValueError), "intervals"),
    (vp.StrongestAttack, {"condition": ["OP"]}, ValueError, r"`condition` to be one of .*, but got \['OP'\]"),
    (vp.EmbeddingTrials, {"metric": 3}, TypeError, "`metric` to be a Metric or a MetricCollection, but got int"),
    (vp.EmbeddingTrials, {"metric": vp.MinCllr}, TypeError, "`metric` to be a Metric or a MetricCollection"),
    (vp.EmbeddingTrials, {"metric": vp.DeIdentification()}, TypeError, r"`update\(preds, target\)`, but got DeId"),
    (vp.EmbeddingTrials, {"metric": MetricCollection([BinaryAUROC(), vp.VoicePrivacy()])}, TypeError, "got VoicePriv"),
    (vp.EmbeddingTrials, {"metric": vp.MinCllr(), "bandwidth": 0.1}, TypeError, "no `bandwidth`: give it to"),
    (vp.EmbeddingTrials, {"metric": vp.MinCllr(), "condition": "PO"}, ValueError, "`condition` to be one of 'OO'"),
]  # fmt: skip


@pytest.mark.parametrize(("metric", "arguments", "error", "message"), INVALID)
def test_invalid_constructor_arguments_raise(metric, arguments, error, message):
    with pytest.raises(error, match=message):
        metric(**arguments)


@pytest.mark.parametrize("name", [name for name in vp.__all__ if isinstance(getattr(vp, name), type)])
def test_every_constructor_validates_flags_and_choices(name):
    metric = getattr(vp, name)
    given = {vp.EmbeddingTrials: {"metric": vp.MinCllr()}, vp.AttributeDisclosure: {"attributes": ["sex"]}}.get(
        metric, {}
    )
    parameters = inspect.signature(metric.__init__).parameters
    assert "validate_args" in parameters
    for argument in {"validate_args", "similarity", "condition", "scoring", "model", "rank_model"} & set(parameters):
        for value in ("no", 1, None, torch.tensor(1)):
            with pytest.raises((TypeError, ValueError), match=f"Expected `{argument}` to be"):
                metric(**given, **{argument: value})
    with pytest.raises(ValueError, match="Unexpected keyword arguments: `band`"):
        metric(**given, band=1)


@pytest.mark.parametrize("run", [True, 1.0, "1", 2, None, torch.tensor(1)], ids=repr)
def test_run_must_be_0_or_1(run):
    metric = vp.CalibrationDistortion()
    batch = scores()[0]
    metric.update(**batch, run=0)
    before = copy.deepcopy(metric.metric_state)
    with pytest.raises(ValueError, match="Expected `run` to be one of 0, 1, but got"):
        metric.update(**batch, run=run)
    assert str(metric.metric_state) == str(before)
    assert metric.update_count == 1


def test_slope_accepts_a_tensor():
    slope = torch.tensor(1.5, dtype=torch.float64)
    first, second = (compute(vp.LocalInformationDisclosure(slope=given), **embeddings()[0]) for given in (slope, 1.5))
    assert first["alid"] == second["alid"]


def test_thresholds_of_any_dtype_give_the_same_value():
    edges = torch.linspace(-4, 4, 9)
    first, *others = (
        vp.MinCllr(thresholds=edges.to(dtype)) for dtype in (torch.float32, torch.float64, torch.bfloat16)
    )
    first.update(**scores()[0])
    value = first.compute()
    for other in others:
        other.update(**scores()[0])
        assert other.compute() == value
        first.merge_state(other)
    assert first.compute() == value  # three times the same trials


def test_a_recording_has_one_speaker_and_one_group():
    rows = embeddings()[0]
    count = len(rows["speakers"])
    ids = torch.arange(count).flip(0)
    shared = ids.clone()
    shared[3] = ids[5]
    other = torch.where(torch.arange(count) == 3, rows["speakers"][5], rows["speakers"])
    message = "same `utterances` to have the same `{}`, but got .* and .* for recording 34"
    for column, arguments in {
        "speakers": {**rows, "utterances": shared},
        "groups": {**rows, "speakers": other, "utterances": shared, "groups": torch.arange(count)},
    }.items():
        metric = vp.DeIdentification()
        metric.update(**{**rows, "speakers": other}, utterances=ids)
        before = str(metric.metric_state)
        with pytest.raises(ValueError, match=message.format(column)):
            metric.update(**arguments)
        assert str(metric.metric_state) == before
        assert metric.compute().isfinite()


def test_a_recording_has_one_speaker_in_all_batches_and_on_all_processes():
    rows = embeddings()[0]
    rows["utterances"] = torch.arange(len(rows["speakers"]))
    metric, lenient = vp.DeIdentification(), vp.DeIdentification(validate_args=False)
    for each in (metric, lenient):
        each.update(**rows)
        each.update(**rows)  # a copy is no contradiction
        assert each.compute().isfinite()
        each.update(**{**rows, "speakers": rows["speakers"].roll(1)})
    with pytest.raises(ValueError, match="Expected rows with the same `utterances` to have the same `speakers`"):
        metric.compute()
    assert lenient.compute().isfinite()  # in a training that does not look at values


@pytest.mark.parametrize(
    ("scoring", "error", "message"),
    [
        (lambda a, b: a @ b.mT > 0, TypeError, r"`scoring\(a, b\)` to have a floating dtype, but got torch.bool"),
        (lambda a, b: a[:1] @ b.mT, ValueError, r"`scoring\(a, b\)` to have shape .*, one score per pair, but got"),
        (lambda a, b: 1.0, TypeError, r"`scoring\(a, b\)` to be a tensor, but got float"),  # noqa: ARG005
    ],
)
def test_output_of_custom_scoring_is_validated(scoring, error, message):
    metric = vp.DeIdentification(scoring=scoring)
    metric.update(**embeddings()[0])
    with pytest.raises(error, match=message):
        metric.compute()


def test_scoring_rejects_a_class():
    with pytest.raises(TypeError, match="Expected `scoring` to be a name or a callable, but got the class PLDA"):
        vp.DeIdentification(scoring=PLDA)


@pytest.mark.parametrize(
    ("slope", "error"),
    [
        ("x", TypeError),
        ({}, TypeError),
        (int, TypeError),
        (True, TypeError),
        (NAN, ValueError),
        (torch.ones(2), ValueError),
        (torch.ones(3, 1), ValueError),
        (torch.tensor([1, 2, 3]), TypeError),
    ],
    ids=repr,
)
def test_functions_accept_one_slope_or_one_per_trial(slope, error):
    scores, true = torch.eye(3), torch.arange(3)
    with pytest.raises(error, match="Expected `slope` to"):
        F.local_information(scores, true, slope)
    with pytest.raises(error, match="Expected `slope` to"):
        F.identify(scores, true, scores, true, slope=slope)
    with pytest.raises(TypeError, match="Expected `slope` to be a number or a tensor, but got None"):
        F.local_information(scores, true, None)
    assert torch.equal(F.local_information(scores, true, 1.5), F.local_information(scores, true, torch.full((3,), 1.5)))


@pytest.mark.parametrize("name", [name for name in vp.__all__ if isinstance(getattr(vp, name), type)])
def test_class_constants_are_values_not_properties(name):
    metric = getattr(vp, name)
    for constant in ("is_differentiable", "higher_is_better", "full_state_update", "plot_lower_bound"):
        assert isinstance(getattr(metric, constant), (bool, float, type(None)))
    assert metric.is_differentiable is (name == "Cllr")
