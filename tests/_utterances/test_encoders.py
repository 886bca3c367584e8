"""Several encoders of the same speech: dictionaries of embeddings, stored side by side."""

import copy
import pickle
import re

import pytest
import torch
from cases import assert_same, embeddings, join
from torch.testing import assert_close

import vpmetrics as vp
from vpmetrics._utterances.encoders import Encoder
from vpmetrics._utterances.texts import decode_texts, encode_texts
from vpmetrics.attacks import Plain

DRAW = torch.Generator().manual_seed(0)
NOISE = torch.randn(150, 6, generator=DRAW, dtype=torch.float64)
ROWS = join(embeddings())
ROWS["original"] = ROWS["original"] + 0.1 * NOISE  # no two rows are equal
ROWS["protected"] = ROWS["protected"] + 0.1 * NOISE.flip(0)
ATTACKS = [Plain()]


def as_dictionaries(rows, names=("ecapa", "wavlm")):
    """The same rows as those of two encoders, two and four wide."""
    tables = {}
    for side in ("original", "protected"):
        both = {"ecapa": rows[side][:, :2], "wavlm": rows[side][:, 2:]}
        tables[side] = {name: both[name] for name in names}
    return {**rows, **tables}


def take(rows, index):
    """Some rows of every table and column."""
    part = {}
    for name, column in rows.items():
        is_table = isinstance(column, dict)
        part[name] = (
            {key: table[index] for key, table in column.items()} if is_table else column[index]
        )
    return part


def test_encoders_are_stored_side_by_side_whatever_the_order_of_names():
    metric = vp.VoicePrivacy(attacks=None)
    metric.update(**take(as_dictionaries(ROWS), slice(0, 75)))
    metric.update(**take(as_dictionaries(ROWS, ("wavlm", "ecapa")), slice(75, None)))
    assert_close(torch.cat(metric.protected), ROWS["protected"])
    data = metric._collect_data()
    assert data.encoders == (Encoder("ecapa", 2), Encoder("wavlm", 4))
    for index, width in enumerate((2, 4)):
        alone = data.of_encoder(index)
        assert alone.original.embeddings.shape == (150, width)
        assert alone.encoders == (data.encoders[index],)


def test_plain_numbers_are_of_the_first_encoder_and_each_has_a_report():
    metric = vp.VoicePrivacy(attacks=None)
    value = metric(**as_dictionaries(ROWS))
    first = vp.VoicePrivacy(attacks=None)
    expected = first(ROWS["original"][:, :2], ROWS["protected"][:, :2], ROWS["speakers"])
    assert_same(value, expected)
    assert_same(metric.compute(), expected)
    report = metric.report()
    assert list(report.encoders) == ["ecapa", "wavlm"]
    assert_same({key: report.encoders["ecapa"].scalars[key] for key in expected}, expected)
    assert report.encoders["wavlm"].scalars["deid"] != expected["deid"]
    assert first.report().encoders == {}


@pytest.mark.filterwarnings("ignore:There are no trials")
@pytest.mark.parametrize("side", ["original", "protected"])
def test_one_side_of_several_encoders(side):
    rows = as_dictionaries(ROWS)
    other = "protected" if side == "original" else "original"
    metric = vp.VoicePrivacy(attacks=None, metrics="all")
    metric.update(**rows | {other: None})
    key = "oo_d_ece" if side == "original" else "pp_d_ece"
    assert metric.compute()[key].isfinite()


def test_encoders_survive_copies_saving_and_merging():
    metric = vp.VoicePrivacy(attacks=None)
    other = vp.VoicePrivacy(attacks=None)
    metric.update(**take(as_dictionaries(ROWS), slice(0, 75)))
    other.update(**take(as_dictionaries(ROWS), slice(75, None)))
    metric.persistent(True)
    loaded = vp.VoicePrivacy(attacks=None)
    loaded.persistent(True)
    loaded.load_state_dict(metric.state_dict())
    expected = vp.VoicePrivacy(attacks=None)(**as_dictionaries(ROWS))
    for each in (metric, loaded, copy.deepcopy(metric), pickle.loads(pickle.dumps(metric))):
        each.merge_state(other)
        assert_same(each.compute(), expected)
        with pytest.raises(
            ValueError, match="`original` to have embeddings of 'ecapa', 'wavlm', but got 'xy'"
        ):
            each.update({"xy": ROWS["original"]}, {"xy": ROWS["protected"]}, ROWS["speakers"])
    metric.reset()
    metric.update(**ROWS)  # any other encoders after a reset


TABLES = as_dictionaries(ROWS)
LESS = {"ecapa": ROWS["original"][:, :2]}
WIDER = {"ecapa": ROWS["original"][:, :3], "wavlm": ROWS["original"][:, 3:]}
SHORT = {"ecapa": ROWS["original"][:, :2], "wavlm": ROWS["original"][:9, 2:]}


@pytest.mark.parametrize(
    ("original", "error", "message"),
    [
        (LESS, ValueError, "`original` to have embeddings of 'ecapa', 'wavlm', but got 'ecapa'"),
        ({}, ValueError, "`original` to have embeddings of 'ecapa', 'wavlm', but got none"),
        (
            WIDER,
            ValueError,
            r"ecapa \(2 wide\), wavlm \(4 wide\).*but got ecapa \(3 wide\), wavlm \(3 wide\)",
        ),
        (
            SHORT,
            ValueError,
            "have as many rows of each encoder, but got 150 of 'ecapa', 9 of 'wavlm'",
        ),
        (ROWS["original"], TypeError, "to be both tensors or both dictionaries"),
        (
            {**LESS, "wavlm": torch.ones(150)},
            ValueError,
            r"`original\['wavlm'\]` to have shape .*, but got \(150",
        ),
        (
            {**LESS, "wavlm": None},
            TypeError,
            r"Expected `original\['wavlm'\]` to be a tensor, but got NoneType",
        ),
    ],
)
def test_other_encoders_raise_before_any_state_changes(original, error, message):
    metric = vp.StrongestAttack(attacks=ATTACKS)
    metric.update(**TABLES)
    before = str(metric.metric_state)
    with pytest.raises(error, match=message):
        metric.update(**TABLES | {"original": original})
    if isinstance(original, dict):
        protected = original
        with pytest.raises((TypeError, ValueError)):
            metric.update(original, protected, ROWS["speakers"])
    with pytest.raises(
        TypeError, match="Expected dictionaries with 'ecapa', 'wavlm', as in earlier batches"
    ):
        metric.update(**ROWS)
    assert str(metric.metric_state) == before


def test_a_dictionary_after_a_tensor_raises():
    metric = vp.VoicePrivacy(attacks=None)
    metric.update(**ROWS)
    with pytest.raises(
        TypeError, match="Expected tensors, as in earlier batches, but got dictionaries"
    ):
        metric.update(**TABLES)


def test_observed_encoders_are_those_of_update():
    metric = vp.StrongestAttack(attacks=ATTACKS)
    metric.observe(**TABLES)
    metric.update(**as_dictionaries(ROWS, ("wavlm", "ecapa")))
    assert_close(metric.original[0], ROWS["original"])
    with pytest.raises(ValueError, match=re.escape("to have embeddings of 'ecapa', 'wavlm'")):
        metric.observe(LESS, LESS, ROWS["speakers"])


@pytest.mark.parametrize("kind", ["lists", "arrays", "rows"])
def test_lists_and_arrays_are_taken_as_tensors(kind):
    make = {"lists": torch.Tensor.tolist, "arrays": torch.Tensor.numpy, "rows": list}[kind]
    rows = {
        name: column.float() if column.is_floating_point() else column
        for name, column in ROWS.items()
    }
    expected = vp.DeIdentification()(**rows)
    given = {name: make(column) for name, column in rows.items()}
    assert_close(vp.DeIdentification()(**given), expected)
    speakers = [torch.arange(60) % 5, torch.arange(60) // 5 % 5]
    trials = {"preds": torch.linspace(-1, 1, 60), "target": speakers[0] == speakers[1]}
    for metric in (vp.ZebraDisclosure, vp.Cllr, vp.TPRAtFPR):
        as_given = {name: make(column) for name, column in trials.items()}
        first = metric()
        second = metric()
        assert_same(first(**as_given), second(**trials))
        assert_same(first.compute(), second.compute())
    first = vp.MinCllr(intervals=0.9)
    second = vp.MinCllr(intervals=0.9)
    assert_same(
        first(**as_given, speakers=[make(side) for side in speakers]),
        second(**trials, speakers=speakers),
    )
    distortions = [vp.CalibrationDistortion(), vp.CalibrationDistortion()]
    for run in (0, 1):
        distortions[0].update(**as_given, run=run)
        distortions[1].update(**trials, run=run)
    assert_close(distortions[0].compute(), distortions[1].compute())


def test_texts_are_kept_whatever_they_hold():
    texts = ["", "Zoë", "a" * 300, "\ud800", "😀"]
    encoded = encode_texts(texts, torch.device("cpu"))
    assert encoded.dtype == torch.uint8
    assert decode_texts(torch.cat([encoded, encoded])) == texts * 2
    assert decode_texts(encode_texts([], torch.device("cpu"))) == []
