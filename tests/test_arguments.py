"""Invalid arguments raise an error that names them, and leave the state of a metric unchanged."""

import inspect
from functools import partial

import pytest
import torch
from cases import embeddings, scores
from reports import compute
from torch import tensor
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAUROC

import vpmetrics as vp
from vpmetrics import functional as F
from vpmetrics.attacks import Plain
from vpmetrics.scoring import PLDA

BINNING = (vp.ZebraDisclosure, vp.MinCllr, vp.EqualErrorRate, vp.Linkability)
SMOOTH = (vp.ZebraDisclosure, vp.MinCllr, vp.EqualErrorRate, vp.DeIdentification, vp.VoicePrivacy)
SLOPED = (vp.LocalInformationDisclosure, vp.VoicePrivacy)
SUITE, DISTORTION = (vp.VoicePrivacy,), vp.CalibrationDistortion
NAN, INFINITY = float("nan"), float("inf")
DESCENDING = [tensor([1.0, 0.0]), tensor([0.0, NAN]), tensor([-INFINITY, 0.0])]
NO_RANGE = [(0, 1, 2), "01", (False, True)]


TRIALS = (vp.EmbeddingTrials,)
RATES = (vp.ReidentificationRate, vp.SinglingOut)

# Classes, an argument, its invalid values, other arguments, the error and its message.
INVALID = [
    ((vp.Cllr,), "thresholds", [64], {}, TypeError, "Cllr takes no `thresholds`: four sums"),
    ((vp.Cllr,), "score_range", [(0, 1)], {}, TypeError, "Cllr takes no `score_range`: four sums"),
    ((vp.Cllr,), "bandwidth", [0.1], {}, TypeError, "Cllr takes no `bandwidth`: the value is smooth"),
    ((vp.Linkability,), "bandwidth", [0.1], {}, TypeError, "Linkability takes no `bandwidth`: the bins"),
    ((DISTORTION,), "bandwidth", [0.1], {}, TypeError, "CalibrationDistortion takes no `bandwidth`: one batch"),
    ((DISTORTION,), "calibration", [True], {}, ValueError, "`calibration` to be one of 'linear', 'isotonic'"),
    ((DISTORTION,), "thresholds", [64], {}, ValueError, "Unexpected keyword arguments: `thresholds`"),
    (BINNING, "thresholds", [True, 2.5], {}, TypeError, "`thresholds` to be None, a number of bins or a tensor"),
    (BINNING, "thresholds", [1], {}, ValueError, "`thresholds` to be at least 2 bins, but got 1"),
    (BINNING, "thresholds", [tensor([1, 2])], {}, TypeError, "`thresholds` to have a floating dtype"),
    (BINNING, "thresholds", [tensor(1.0)], {}, ValueError, r"`thresholds` to have shape \(edges,\), but got \(\)"),
    (BINNING, "thresholds", DESCENDING, {}, ValueError, "finite and strictly ascending"),
    (BINNING, "score_range", [(0, 1)], {}, ValueError, "`score_range` only together with `thresholds` as a number"),
    (BINNING, "score_range", [5], {"thresholds": 8}, TypeError, "`score_range` to be two numbers, but got 5"),
    (BINNING, "score_range", NO_RANGE, {"thresholds": 8}, TypeError, "`score_range` to be two numbers"),
    (BINNING, "score_range", [(1, 0), (0, NAN)], {"thresholds": 8}, ValueError, "to be two finite ascending numbers"),
    (BINNING, "score_range", [(1, 1 + 1e-15)], {"thresholds": 8}, ValueError, "to be wide enough for 8 bins"),
    (SMOOTH, "bandwidth", ["x"], {}, TypeError, "`bandwidth` to be a float or None, but got str"),
    (SMOOTH, "bandwidth", [True], {}, TypeError, "`bandwidth` to be a float or None, but got bool"),
    (SMOOTH, "bandwidth", [0, NAN], {}, ValueError, "`bandwidth` to be positive and finite, but got (0|nan)"),
    (SMOOTH, "bandwidth", [0.1], {"dist_sync_on_step": True}, ValueError, "`dist_sync_on_step` only without `bandw"),
    ((vp.MinCllr,), "bandwidth", [0.1], {"thresholds": 8}, ValueError, "`bandwidth` only without `thresholds`"),
    (SLOPED, "slope", ["x", True, torch.ones(2)], {}, TypeError, "`slope` to be a number or None, but got"),
    (SLOPED, "slope", [NAN, tensor(INFINITY)], {}, ValueError, "`slope` to be finite, but got (nan|inf)"),
    (SUITE, "attacks", [[Plain()]], {"bandwidth": 0.1}, ValueError, "`attacks` only without `bandwidth`"),
    (SUITE, "metrics", [["op_dece"]], {}, ValueError, r"to name .*, but got 'op_dece'\. Closest: 'op_d_ece'"),
    (SUITE, "metrics", [["op_d_ece_strongest"]], {"attacks": None}, ValueError, r"got 'op_d_ece_strongest'\. Closest"),
    (SUITE, "metrics", ["deid"], {}, ValueError, "`metrics` to be one of 'headline', 'all', but got 'deid'"),
    (SUITE, "metrics", [3], {}, TypeError, "`metrics` to be a sequence of names, but got 3"),
    (RATES, "sizes", [(0,)], {}, ValueError, "Expected `sizes`"),
    (RATES, "utterances", [0], {}, ValueError, "Expected `utterances`"),
    (RATES, "attack", [3], {}, TypeError, "Expected `attack`"),
    (RATES[:1], "accumulated", ["probe"], {}, ValueError, "Expected `accumulated`"),
    (RATES[1:], "condition", ["within"], {}, ValueError, "Expected `condition`"),
    (RATES[1:], "draws", [1], {}, ValueError, "Expected `draws` to be at least 2"),
    (RATES[1:], "intervals", [0.95], {}, TypeError, "no `intervals`: without a speaker other sets of people"),
    ((vp.VoiceSimilarityMatrix,), "intervals", [0.95], {}, (TypeError, ValueError), "intervals"),
    ((vp.StrongestAttack,), "condition", [["OP"]], {}, ValueError, r"`condition` to be one of .*, but got \['OP'\]"),
    (TRIALS, "intervals", [0.95], {"metric": vp.MinCllr()}, (TypeError, ValueError), "intervals"),
    (TRIALS, "bandwidth", [0.1], {"metric": vp.MinCllr()}, TypeError, "no `bandwidth`: give it to"),
    (TRIALS, "condition", ["PO"], {"metric": vp.MinCllr()}, ValueError, "`condition` to be one of 'OO'"),
    (TRIALS, "metric", [3, vp.MinCllr], {}, TypeError, "`metric` to be a Metric or a MetricCollection, but got"),
    (TRIALS, "metric", [vp.DeIdentification()], {}, TypeError, r"`update\(preds, target\)`, but got DeId"),
    (TRIALS, "metric", [MetricCollection([BinaryAUROC(), vp.VoicePrivacy()])], {}, TypeError, "got VoicePriv"),
]


@pytest.mark.parametrize(("metrics", "argument", "values", "others", "error", "message"), INVALID)
def test_invalid_constructor_arguments_raise(metrics, argument, values, others, error, message):
    for metric in metrics:
        for value in values:
            with pytest.raises(error, match=message):
                metric(**{argument: value}, **others)


@pytest.mark.parametrize("name", [name for name in vp.__all__ if isinstance(getattr(vp, name), type)])
def test_every_constructor_validates_flags_and_choices(name):
    metric = getattr(vp, name)
    given = {vp.EmbeddingTrials: {"metric": vp.MinCllr()}, vp.AttributeDisclosure: {"attributes": ["sex"]}}
    make = partial(metric, **given.get(metric, {}))
    parameters = inspect.signature(metric.__init__).parameters
    assert "validate_args" in parameters
    for argument in {"validate_args", "similarity", "condition", "scoring", "model", "rank_model"} & set(parameters):
        for value in ("no", 1, None, tensor(1)):
            with pytest.raises((TypeError, ValueError), match=f"Expected `{argument}` to be"):
                make(**{argument: value})
    with pytest.raises(ValueError, match="Unexpected keyword arguments: `band`"):
        make(band=1)
    # Constants of the class are values, not properties.
    for constant in ("is_differentiable", "higher_is_better", "full_state_update", "plot_lower_bound"):
        assert isinstance(getattr(metric, constant), (bool, float, type(None)))
    assert metric.is_differentiable is (name == "Cllr")


@pytest.mark.parametrize("run", [True, 1.0, "1", 2, None, tensor(1)], ids=repr)
def test_run_must_be_0_or_1(run):
    metric = vp.CalibrationDistortion()
    with pytest.raises(ValueError, match="Expected `run` to be one of 0, 1, but got"):
        metric.update(**scores()[0], run=run)
    assert not metric.update_called


def test_thresholds_of_any_dtype_give_the_same_value():
    edges = torch.linspace(-4, 4, 9)
    first, *others = (vp.MinCllr(thresholds=edges.to(kind)) for kind in (torch.float32, torch.float64, torch.bfloat16))
    value = compute(first, **scores()[0])
    for other in others:
        assert compute(other, **scores()[0]) == value
        first.merge_state(other)
    assert first.compute() == value  # three times the same trials


@pytest.mark.parametrize("column", ["speakers", "groups"])
def test_a_recording_has_one_speaker_and_one_group(column):
    rows, ids, metric = embeddings()[0], torch.arange(40).flip(0), vp.DeIdentification()
    rows["speakers"] = rows["speakers"].index_copy(0, tensor([3]), rows["speakers"][[5 if column == "groups" else 3]])
    metric.update(**rows, utterances=ids)
    before, shared = str(metric.metric_state), ids.index_copy(0, tensor([3]), ids[[5]])
    message = f"same `utterances` to have the same `{column}`, but got .* and .* for recording 34"
    with pytest.raises(ValueError, match=message):
        metric.update(**rows, utterances=shared, groups=torch.arange(40) if column == "groups" else None)
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
        (lambda *_: 1.0, TypeError, r"`scoring\(a, b\)` to be a tensor, but got float"),
        (PLDA, TypeError, "Expected `scoring` to be a name or a callable, but got the class PLDA"),
    ],
)
def test_custom_scoring_and_its_output_are_validated(scoring, error, message):
    with pytest.raises(error, match=message):
        compute(vp.DeIdentification(scoring=scoring), **embeddings()[0])


@pytest.mark.parametrize(
    ("error", "slopes"),
    [
        (TypeError, ["x", {}, int, True, tensor([1, 2, 3])]),
        (ValueError, [NAN, torch.ones(2), torch.ones(3, 1)]),
    ],
)
def test_functions_accept_one_slope_or_one_per_trial(error, slopes):
    rows = torch.eye(3), torch.arange(3)
    for slope in slopes:
        with pytest.raises(error, match="Expected `slope` to"):
            F.local_information(*rows, slope)
        with pytest.raises(error, match="Expected `slope` to"):
            F.identify(*rows, *rows, slope=slope)
    with pytest.raises(TypeError, match="Expected `slope` to be a number or a tensor, but got None"):
        F.local_information(*rows, None)
    assert torch.equal(F.local_information(*rows, 1.5), F.local_information(*rows, torch.full((3,), 1.5)))
    one, other = (compute(vp.LocalInformationDisclosure(slope=of), **embeddings()[0]) for of in (1.5, tensor(1.5)))
    assert one["alid"] == other["alid"]
