"""Invalid arguments raise an error that names them, and leave the state of a metric unchanged."""

import inspect
from functools import partial

import numpy as np
import pytest
import torch
from cases import embeddings, feed, scores
from reports import compute
from torch import tensor

import vpmetrics as vp
from vpmetrics import functional as F
from vpmetrics._scores.scorers import resolve_scoring
from vpmetrics.attacks import Plain
from vpmetrics.data import SpeakerBatchSampler
from vpmetrics.losses import PseudonymisationLoss
from vpmetrics.losses.embedding_loss import EmbeddingLoss
from vpmetrics.scoring import PLDA

BINNING = (vp.ZebraDisclosure, vp.MinCllr, vp.EqualErrorRate, vp.Linkability)
SMOOTH = (vp.ZebraDisclosure, vp.MinCllr, vp.EqualErrorRate, vp.DeIdentification, vp.VoicePrivacy)
SLOPED = (vp.LocalInformationDisclosure, vp.VoicePrivacy)
SUITE, DISTORTION = (vp.VoicePrivacy,), vp.CalibrationDistortion
NAN, INFINITY = float("nan"), float("inf")
EYE, THREE, FOUR, HALF = torch.eye(3), torch.arange(3), torch.arange(4), torch.arange(4) // 2
DESCENDING = [tensor([1.0, 0.0]), tensor([0.0, NAN]), tensor([-INFINITY, 0.0])]
NO_RANGE = [(0, 1, 2), "01", (False, True)]


LOSS, SAMPLER = (
    (PseudonymisationLoss,),
    (partial(SpeakerBatchSampler, speakers=HALF, speakers_per_batch=2),),
)
RATES = (vp.ReidentificationRate, vp.SinglingOut)

# Classes, an argument, its invalid values, other arguments, the error and its message.
INVALID = [
    ((vp.Cllr,), "thresholds", [64], {}, TypeError, "Cllr takes no `thresholds`: four sums"),
    ((vp.Cllr,), "score_range", [(0, 1)], {}, TypeError, "Cllr takes no `score_range`: four sums"),
    (
        (vp.Cllr,),
        "bandwidth",
        [0.1],
        {},
        TypeError,
        "Cllr takes no `bandwidth`: the value is smooth",
    ),
    (
        (vp.Linkability,),
        "bandwidth",
        [0.1],
        {},
        TypeError,
        "Linkability takes no `bandwidth`: the bins",
    ),
    (
        (vp.LocalInformationDisclosure,),
        "bandwidth",
        [0.1],
        {},
        TypeError,
        "takes no `bandwidth`: descend a loss",
    ),
    (
        (vp.ReidentificationRate,),
        "bandwidth",
        [0.1],
        {},
        TypeError,
        "takes no `bandwidth`: somebody is found or",
    ),
    (
        (DISTORTION,),
        "bandwidth",
        [0.1],
        {},
        TypeError,
        "CalibrationDistortion takes no `bandwidth`: one batch",
    ),
    (
        (DISTORTION,),
        "calibration",
        [True],
        {},
        ValueError,
        "`calibration` to be one of 'linear', 'isotonic'",
    ),
    (
        (DISTORTION,),
        "thresholds",
        [64],
        {},
        ValueError,
        "Unexpected keyword arguments: `thresholds`",
    ),
    (
        BINNING,
        "thresholds",
        [True, 2.5],
        {},
        TypeError,
        "`thresholds` to be None, a number of bins or a tensor",
    ),
    (BINNING, "thresholds", [1], {}, ValueError, "`thresholds` to be at least 2 bins, but got 1"),
    (
        BINNING,
        "thresholds",
        [tensor([1, 2])],
        {},
        TypeError,
        "`thresholds` to have a floating dtype",
    ),
    (
        BINNING,
        "thresholds",
        [tensor(1.0)],
        {},
        ValueError,
        r"`thresholds` to have shape \(edges,\), but got \(\)",
    ),
    (BINNING, "thresholds", DESCENDING, {}, ValueError, "finite and strictly ascending"),
    (
        BINNING,
        "score_range",
        [(0, 1)],
        {},
        ValueError,
        "`score_range` only together with `thresholds` as a number",
    ),
    (
        BINNING,
        "score_range",
        [5],
        {"thresholds": 8},
        TypeError,
        "`score_range` to be two numbers, but got 5",
    ),
    (
        BINNING,
        "score_range",
        NO_RANGE,
        {"thresholds": 8},
        TypeError,
        "`score_range` to be two numbers",
    ),
    (
        BINNING,
        "score_range",
        [(1, 0), (0, NAN)],
        {"thresholds": 8},
        ValueError,
        "to be two finite ascending numbers",
    ),
    (
        BINNING,
        "score_range",
        [(1, 1 + 1e-15)],
        {"thresholds": 8},
        ValueError,
        "to be wide enough for 8 bins",
    ),
    (SMOOTH, "bandwidth", ["x"], {}, TypeError, "`bandwidth` to be a float or None, but got str"),
    (SMOOTH, "bandwidth", [True], {}, TypeError, "`bandwidth` to be a float or None, but got bool"),
    (
        SMOOTH,
        "bandwidth",
        [0, NAN],
        {},
        ValueError,
        "`bandwidth` to be positive and finite, but got (0|nan)",
    ),
    (
        SMOOTH,
        "bandwidth",
        [0.1],
        {"dist_sync_on_step": True},
        ValueError,
        "`dist_sync_on_step` only without `bandw",
    ),
    (
        (vp.MinCllr,),
        "bandwidth",
        [0.1],
        {"thresholds": 8},
        ValueError,
        "`bandwidth` only without `thresholds`",
    ),
    (
        SLOPED,
        "slope",
        ["x", True, torch.ones(2)],
        {},
        TypeError,
        "`slope` to be a number or None, but got",
    ),
    (
        SLOPED,
        "slope",
        [NAN, tensor(INFINITY)],
        {},
        ValueError,
        "`slope` to be finite, but got (nan|inf)",
    ),
    (
        SUITE,
        "attacks",
        [[Plain()]],
        {"bandwidth": 0.1},
        ValueError,
        "`attacks` only without `bandwidth`",
    ),
    (
        SUITE,
        "metrics",
        [["op_dece"]],
        {},
        ValueError,
        r"to name .*, but got 'op_dece'\. Closest: 'op_d_ece'",
    ),
    (
        SUITE,
        "metrics",
        [["op_d_ece_strongest"]],
        {"attacks": None},
        ValueError,
        r"got 'op_d_ece_strongest'\. Closest",
    ),
    (
        SUITE,
        "metrics",
        ["deid"],
        {},
        ValueError,
        "`metrics` to be one of 'headline', 'all', but got 'deid'",
    ),
    (SUITE, "metrics", [3], {}, TypeError, "`metrics` to be a sequence of names, but got 3"),
    (RATES, "sizes", [(0,)], {}, ValueError, "Expected `sizes`"),
    (RATES, "conversation", [0], {}, ValueError, "Expected `conversation`"),
    (RATES, "attack", [3], {}, TypeError, "Expected `attack`"),
    (RATES[1:], "condition", ["within"], {}, ValueError, "Expected `condition`"),
    (RATES[1:], "draws", [1], {}, ValueError, "Expected `draws` to be at least 2"),
    (
        RATES[1:],
        "intervals",
        [0.95],
        {},
        TypeError,
        "no `intervals`: without a speaker other sets of people",
    ),
    ((vp.VoiceSimilarityMatrix,), "intervals", [0.95], {}, (TypeError, ValueError), "intervals"),
    (
        (vp.StrongestAttack,),
        "condition",
        [["OP"]],
        {},
        ValueError,
        r"`condition` to be one of .*, but got \['OP'\]",
    ),
    (LOSS, "bandwidth", [0], {}, ValueError, "Expected `bandwidth` to be above 0, but got 0"),
    (
        LOSS,
        "bandwidth",
        [None],
        {},
        TypeError,
        "Expected `bandwidth` to be a number, but got NoneType",
    ),
    (
        LOSS,
        "flatness",
        [-1],
        {},
        ValueError,
        "Expected `flatness` to be at least 0 and finite, but got -1",
    ),
    (
        LOSS,
        "disclosure",
        [INFINITY],
        {},
        ValueError,
        "Expected `disclosure` to be at least 0 and finite, but got inf",
    ),
    (
        LOSS,
        "session_invariance",
        [-1],
        {},
        ValueError,
        "`session_invariance` to be at least 0 and finite, but got",
    ),
    (
        LOSS,
        "attacks",
        ["past"],
        {},
        TypeError,
        "`attacks` to be a sequence of names, but got 'past'",
    ),
    (
        LOSS,
        "attacks",
        [("future",)],
        {},
        ValueError,
        "`attacks` to be one of 'batch', 'past', but got 'future'",
    ),
    (
        SAMPLER,
        "speakers",
        [torch.zeros(8)],
        {},
        TypeError,
        "`speakers` to have an integer dtype, but got torch.fl",
    ),
    (
        SAMPLER,
        "speakers",
        [HALF[None]],
        {},
        ValueError,
        r"`speakers` to have shape \(N,\), but got \(1, 4\)",
    ),
    (
        SAMPLER,
        "speakers",
        [torch.arange(8), []],
        {},
        ValueError,
        "2 speakers with 2 utterances or more, but got 0",
    ),
    (
        SAMPLER,
        "speakers",
        [0 * HALF],
        {},
        ValueError,
        "at least 2 speakers with 2 utterances or more, but got 1",
    ),
    (
        SAMPLER,
        "speakers",
        [["a", None]],
        {},
        TypeError,
        "to be integers or strings, but 1 of 2 are missing",
    ),
    (
        SAMPLER,
        "speakers_per_batch",
        [1],
        {},
        ValueError,
        "`speakers_per_batch` to be at least 2, but got 1",
    ),
    (
        SAMPLER,
        "utterances",
        [1],
        {},
        ValueError,
        "Expected `utterances` to be at least 2, but got 1",
    ),
    (
        SAMPLER,
        "utterances",
        [4.0],
        {},
        TypeError,
        "Expected `utterances` to be a whole number, but got 4.0",
    ),
    (SAMPLER, "seed", [-1], {}, ValueError, "Expected `seed` to be at least 0, but got -1"),
]


@pytest.mark.parametrize(("metrics", "argument", "values", "others", "error", "message"), INVALID)
def test_invalid_constructor_arguments_raise(metrics, argument, values, others, error, message):
    for metric in metrics:
        for value in values:
            with pytest.raises(error, match=message):
                metric(**{argument: value}, **others)


@pytest.mark.parametrize(
    "name", [name for name in vp.__all__ if isinstance(getattr(vp, name), type)]
)
def test_every_constructor_validates_flags_and_choices(name):
    metric = getattr(vp, name)
    given = {vp.AttributeDisclosure: {"attributes": ["sex"]}}
    make = partial(metric, **given.get(metric, {}))
    parameters = inspect.signature(metric.__init__).parameters
    assert "validate_args" in parameters
    for argument in {
        "validate_args",
        "similarity",
        "condition",
        "scoring",
        "model",
        "rank_model",
    } & set(parameters):
        for value in ("no", 1, None, tensor(1)):
            with pytest.raises((TypeError, ValueError), match=f"Expected `{argument}` to be"):
                make(**{argument: value})
    with pytest.raises(ValueError, match="Unexpected keyword arguments: `band`"):
        make(band=1)
    # Constants of the class are values, not properties.
    for constant in (
        "is_differentiable",
        "higher_is_better",
        "full_state_update",
        "plot_lower_bound",
    ):
        assert isinstance(getattr(metric, constant), (bool, float, type(None)))
    assert metric.is_differentiable is (name == "Cllr")


@pytest.mark.parametrize("run", [True, 1.0, "1", 2, None, tensor(1)], ids=repr)
def test_run_must_be_0_or_1(run):
    metric = vp.CalibrationDistortion()
    with pytest.raises(ValueError, match="Expected `run` to be one of 0, 1, but got"):
        metric.update(**scores()[0], run=run)
    assert all(len(rows) == 0 for _, rows in metric._list_states())


def test_thresholds_of_any_dtype_give_the_same_value():
    edges = torch.linspace(-4, 4, 9)
    first, *others = (
        vp.MinCllr(thresholds=edges.to(kind))
        for kind in (torch.float32, torch.float64, torch.bfloat16)
    )
    value = compute(first, **scores()[0])
    for other in others:
        assert compute(other, **scores()[0]) == value
        first.merge_state(other)
    assert first.compute() == value  # three times the same trials


@pytest.mark.parametrize("column", ["speakers", "groups"])
def test_a_recording_has_one_speaker_and_one_group(column):
    rows, ids, metric = embeddings()[0], torch.arange(40).flip(0), vp.DeIdentification()
    rows["speakers"] = rows["speakers"].index_copy(
        0, tensor([3]), rows["speakers"][[5 if column == "groups" else 3]]
    )
    metric.update(**rows, utterances=ids)
    before, shared = str(metric.metric_state), ids.index_copy(0, tensor([3]), ids[[5]])
    message = f"same `utterances` to have the same `{column}`, but got .* and .* for recording 34"
    with pytest.raises(ValueError, match=message):
        metric.update(
            **rows, utterances=shared, groups=torch.arange(40) if column == "groups" else None
        )
    assert str(metric.metric_state) == before
    assert metric.compute().isfinite()


def test_a_recording_has_one_speaker_in_all_batches_and_on_all_processes():
    rows = embeddings()[0] | {"utterances": torch.arange(40)}
    for validate_args in (True, False):
        # a copy is no contradiction
        metric = feed(vp.DeIdentification(validate_args=validate_args), [rows, rows])
        assert metric.compute().isfinite()
        metric.update(**rows | {"speakers": rows["speakers"].roll(1)})
        if validate_args:
            with pytest.raises(
                ValueError, match="rows with the same `utterances` to have the same `speakers`"
            ):
                metric.compute()
        else:
            assert metric.compute().isfinite()  # in a training that does not look at values


def test_names_of_a_rejected_batch_are_forgotten():
    metric = vp.DeIdentification()
    with pytest.raises(ValueError, match=r"`speakers` to have shape \(3,\)"):
        metric.update(**GOOD | {"speakers": ["a"] * 2})
    assert not metric.speaker_names


attributes = partial(F.attribute_disclosure, torch.randn(8, 3), speakers=torch.arange(8) // 2)
similar = lambda scoring: compute(vp.DeIdentification(scoring=scoring), **embeddings()[0])  # noqa: E731
ROWS = torch.ones(3, 4)
GOOD = {"original": ROWS, "protected": ROWS, "speakers": THREE // 2}
see = lambda **change: feed(vp.DeIdentification(), [GOOD, GOOD | change])  # noqa: E731
lose = partial(PseudonymisationLoss(), original=EYE, protected=EYE, speakers=THREE)
WRONG, UNSIZED = [(), (0,), (2, 2)], [5, (2.0,), "20"]  # sizes of galleries
INVALID_CALLS = [
    (lambda: F.trials(ROWS, ROWS, THREE, "PO"), ValueError, "`condition` to be one of 'OO'"),
    (
        lambda: F.trials(ROWS, ROWS, THREE, block_rows=0),
        ValueError,
        "`block_rows` to be at least 1, but got 0",
    ),
    (
        lambda: F.trials(ROWS, ROWS, THREE, block_rows=2.0),
        TypeError,
        "`block_rows` to be a whole number",
    ),
    (
        lambda: F.trials(ROWS, ROWS, THREE, enrolment="speaker"),
        ValueError,
        "`is_reference` with enrolment='speaker'",
    ),
    (lambda: F.trials(ROWS, ROWS, FOUR), ValueError, r"`speakers` to have shape \(3,\)"),
    (lambda: F.trials(NAN * ROWS, ROWS, THREE), ValueError, "`original` to hold finite numbers"),
    (
        lambda: F.zebra_disclosure([0.5], tensor([1])),
        TypeError,
        "`preds` to be a tensor, but got list",
    ),
    (
        lambda: F.zebra_disclosure(tensor([1]), tensor([1])),
        TypeError,
        "`preds` to have a floating .* got torch.int64",
    ),
    (
        lambda: F.zebra_disclosure(EYE[0], EYE[0]),
        TypeError,
        "`target` to be boolean or integer, but got torch.float32",
    ),
    (
        lambda: F.zebra_disclosure(EYE[0], FOUR),
        ValueError,
        r"`target` to have shape \(3,\).*got \(4,\)",
    ),
    (
        lambda: F.zebra_disclosure(EYE[0].to("meta"), THREE),
        ValueError,
        "one device, but got meta and cpu",
    ),
    (
        lambda: F.zebra_disclosure(tensor([0.1, NAN]), FOUR[:2]),
        ValueError,
        "`preds` to hold no NaN, but got 1 of 2",
    ),
    (
        lambda: F.zebra_disclosure(EYE[0], THREE - 1),
        ValueError,
        r"`target` to hold only 0 and 1, but got \[-1\]",
    ),
    (
        lambda: vp.MinCllr().update(tensor([0.1, NAN]), FOUR[:2]),
        ValueError,
        "`preds` to hold no NaN, but got 1 of 2",
    ),
    (
        lambda: vp.MinCllr(thresholds=8).update(EYE[0], THREE - 1),
        ValueError,
        "`target` to hold only 0 and 1",
    ),
    (
        lambda: F.min_dcf(EYE[0], THREE % 2, p_target=1.0),
        ValueError,
        "`p_target` to lie between 0 and 1",
    ),
    (lambda: F.min_dcf(EYE[0], THREE % 2, c_miss=0.0), ValueError, "`c_miss` to be above 0"),
    (lambda: F.isotonic_regression([1.0]), TypeError, "`y` to be a tensor"),
    (lambda: F.isotonic_regression(EYE[0] + 0j), TypeError, "`y` to be real"),
    (
        lambda: F.isotonic_regression(EYE[0], torch.ones(2)),
        ValueError,
        r"`weights` to have shape \(3,\).*got \(2,\)",
    ),
    (
        lambda: F.isotonic_regression(EYE[0], tensor([1.0, 0, -1])),
        ValueError,
        "non-negative, but got -1",
    ),
    (
        lambda: F.rank_histogram(EYE, torch.arange(2)),
        ValueError,
        r"`speakers` to have shape \(3,\)",
    ),
    (
        lambda: F.rank_histogram(EYE, torch.rand(3)),
        TypeError,
        "`speakers` to have an integer dtype",
    ),
    (lambda: F.rank_histogram(EYE.long(), THREE), TypeError, "`inputs` to have a floating dtype"),
    (
        lambda: F.rank_histogram(torch.ones(3), THREE),
        ValueError,
        r"`inputs` to have shape .* got \(3,\)",
    ),
    (lambda: F.rank_histogram(EYE, THREE, torch.eye(4)), ValueError, "`reference_speakers`"),
    (lambda: F.rank_histogram(EYE, THREE, None, THREE), ValueError, "`references`"),
    (lambda: F.rank_histogram(EYE, THREE, torch.ones(3, 2)), ValueError, "3 columns"),
    (lambda: F.rank_histogram(EYE, THREE, scoring="cos"), ValueError, "`scoring` to be one of"),
    (lambda: F.rank_disclosure(EYE[0], model="beta"), ValueError, "`model` to be one of"),
    (lambda: F.rank_disclosure([1, 2]), TypeError, "`histogram` to be a tensor"),
    (
        lambda: F.rank_disclosure(tensor([3.0, -1])),
        ValueError,
        "`histogram` to hold no negative .* got -1",
    ),
    (
        lambda: F.fit_beta_binomial(tensor(1.0)),
        ValueError,
        r"`histogram` to have shape \(\.\.\., N\)",
    ),
    (lambda: F.f0_histogram(tensor([1])), TypeError, "`f0` to have a floating dtype"),
    (lambda: F.f0_histogram(torch.ones(1), lowest=500.0), ValueError, "`lowest` < `highest`"),
    (lambda: F.codebook_histogram(tensor([3]), size=3), ValueError, "below `size` = 3, but got 3"),
    (lambda: F.combine_disclosures([]), ValueError, "at least one feature"),
    (lambda: F.local_information(torch.ones(3), THREE, 1.0), ValueError, r"got \(3,\)"),
    (
        lambda: F.local_information(EYE[:, :2], torch.arange(2), 1.0),
        ValueError,
        r"`target_index` to have sh",
    ),
    (
        lambda: F.local_information(EYE[:, :2], torch.ones(3), 1.0),
        TypeError,
        "`target_index` to have an int",
    ),
    (lambda: F.fit_local_slope(EYE[:, :2].long(), THREE), TypeError, "`scores` to have a floating"),
    *(
        (lambda sizes=sizes: F.reidentification_rate(EYE[0], sizes), ValueError, "Expected `sizes`")
        for sizes in WRONG
    ),
    *(
        (lambda sizes=sizes: F.reidentification_rate(EYE[0], sizes), TypeError, "Expected `sizes`")
        for sizes in UNSIZED
    ),
    (lambda: attributes(labels=THREE), ValueError, r"`labels` to have shape \(8,\)"),
    (
        lambda: attributes(labels=torch.arange(8) % 2, confidence=1.5),
        ValueError,
        "`confidence` to lie between 0 and 1",
    ),
    (
        lambda: attributes(labels=torch.arange(8) % 2, permutations=-1),
        ValueError,
        "`permutations` to be at least 0",
    ),
    (
        lambda: see(original=None, protected=None),
        ValueError,
        "`original` or `protected`, but got neither",
    ),
    (lambda: see(original=[1.0]), ValueError, r"`original` to have shape \(B, D\), but got \(1,\)"),
    (
        lambda: see(original=[[1.0], [1.0, 2.0]]),
        TypeError,
        "`original` to be a tensor, an array, or a list of numbers",
    ),
    (
        lambda: see(original={"a": ROWS}),
        TypeError,
        "`original` to be a tensor, but got a dictionary: DeIdentification",
    ),
    (
        lambda: vp.MinCllr().update(np.arange(3), THREE),
        TypeError,
        "`preds` to have a floating dtype, but got int64",
    ),
    (
        lambda: vp.MinCllr().update([0.5], ["a"]),
        TypeError,
        "`target` to hold integers or booleans, but got <U1",
    ),
    (lambda: see(original=ROWS.long()), TypeError, "`original` to have a floating dtype"),
    (
        lambda: see(original=np.zeros((3, 4), int)),
        TypeError,
        "`original` to have a floating dtype, but got int64",
    ),
    (
        lambda: see(original=torch.zeros(3, 2, 4)),
        ValueError,
        r"`original` to have shape \(B, D\), but got \(3, 2, 4\)",
    ),
    (
        lambda: see(original=torch.ones(4)),
        ValueError,
        r"`original` to have shape \(B, D\), but got \(4,\)",
    ),
    (
        lambda: see(protected=torch.ones(2, 4)),
        ValueError,
        r"`protected` to have shape \(3, 4\).*got \(2, 4\)",
    ),
    (lambda: see(speakers=None), TypeError, "`speakers` to be a tensor, but got NoneType"),
    (lambda: see(speakers=EYE[0]), TypeError, "`speakers` to have an integer dtype"),
    (lambda: see(speakers=FOUR[:2]), ValueError, r"`speakers` to have shape \(3,\).*got \(2,\)"),
    (
        lambda: see(speakers=[None] * 3),
        TypeError,
        "`speakers` to be integers or strings, but 3 of 3 are missing",
    ),
    (lambda: see(utterances=EYE[0]), TypeError, "`utterances` to have an integer dtype"),
    (lambda: see(is_reference=EYE[0]), TypeError, "`is_reference` to be boolean"),
    (
        lambda: see(original=NAN * ROWS),
        ValueError,
        "`original` to hold finite numbers, but 3 of 3 rows",
    ),
    (lambda: see(protected=INFINITY * ROWS), ValueError, "`protected` to hold finite numbers"),
    (
        lambda: see(original=torch.ones(3, 5), protected=torch.ones(3, 5)),
        ValueError,
        "4 wide.*but got 5",
    ),
    (lambda: PLDA()(ROWS, ROWS), RuntimeError, "fitted before it is called"),
    (lambda: PLDA().fit(ROWS, 0 * THREE), ValueError, "at least two speakers"),
    (lambda: resolve_scoring(3), TypeError, "a name or a callable, but got int"),
    (
        lambda: lose(original=None),
        TypeError,
        "Expected `original` to be a tensor, but got NoneType",
    ),
    (
        lambda: lose(protected=EYE.long()),
        TypeError,
        "Expected `protected` to have a floating dtype",
    ),
    (
        lambda: lose(protected=EYE[:, :2]),
        ValueError,
        r"Expected `protected` to have shape \(3, 3\)",
    ),
    (lambda: lose(speakers=EYE[0]), TypeError, "Expected `speakers` to have an integer dtype"),
    (lambda: lose(speakers=FOUR), ValueError, r"Expected `speakers` to have shape \(3,\)"),
    (lambda: lose(sessions=FOUR), ValueError, r"Expected `sessions` to have shape \(3,\)"),
    (lambda: lose(sessions=EYE[0]), TypeError, "Expected `sessions` to have an integer dtype"),
    (
        lambda: EmbeddingLoss()(EYE, EYE, THREE // 2),
        NotImplementedError,
        "EmbeddingLoss to define `compute_parts`",
    ),
    (
        lambda: similar(lambda a, b: a @ b.mT > 0),
        TypeError,
        r"`scoring\(a, b\)` to have a floating .* got torch.bool",
    ),
    (
        lambda: similar(lambda a, b: a[:1] @ b.mT),
        ValueError,
        r"`scoring\(a, b\)` to have shape .*, one score per pair",
    ),
    (
        lambda: similar(lambda *_: 1.0),
        TypeError,
        r"`scoring\(a, b\)` to be a tensor, but got float",
    ),
    (
        lambda: similar(PLDA),
        TypeError,
        "Expected `scoring` to be a name or a callable, but got the class PLDA",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), INVALID_CALLS)
def test_invalid_calls_raise(call, error, message):
    with pytest.raises(error, match=message):
        call()


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
    with pytest.raises(
        TypeError, match="Expected `slope` to be a number or a tensor, but got None"
    ):
        F.local_information(*rows, None)
    assert torch.equal(
        F.local_information(*rows, 1.5), F.local_information(*rows, torch.full((3,), 1.5))
    )
    one, other = (
        compute(vp.LocalInformationDisclosure(slope=of), **embeddings()[0])
        for of in (1.5, tensor(1.5))
    )
    assert one["alid"] == other["alid"]
