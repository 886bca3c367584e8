"""What every metric owes TorchMetrics and Lightning, run over every row of ``cases.py``."""

import copy
import gc
import pickle
import re
import types
import warnings
from unittest.mock import Mock

import pytest
import torch
from cases import (
    CASES,
    EMBEDDING_CASES,
    RUN_CASES,
    SCORE_CASES,
    assert_same,
    entries,
    expected_value,
    feed,
    join,
    mapped,
    updated,
)
from device_modes import DeviceWatch, without_values
from faults import FailsAt
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAUROC, BinaryROC
from torchmetrics.utilities.exceptions import TorchMetricsUserError
from torchmetrics.wrappers import Running

import vpmetrics as vp

each_case = pytest.mark.parametrize("case", CASES, ids=str)


def assert_reset(case, metric):
    """Reset a metric, feed it again, and see that nothing of before is left."""
    metric.reset()
    assert_same(feed(metric, case.batches()[:2]).compute(), expected_value(case, 2))


def test_every_metric_has_a_test_case():
    names = {name for name in vp.__all__ if isinstance(getattr(vp, name), type)}
    assert {type(case.metric()).__name__ for case in CASES} == names


@each_case
def test_class_function_and_reference_agree(case):
    rows = join(case.batches())
    expected = case.reference(**rows)
    for value in (case.function(**rows), updated(case).compute()):
        if isinstance(value, dict):
            value = {
                key: entry for key, entry in value.items() if not key.endswith(case.unreferenced)
            }
        assert_same(value, expected, atol=1e-9, coarse=1e-3)


@each_case
def test_reset_clone_pickle_and_copy(case):
    metric = updated(case)
    expected = expected_value(case)
    for other in (metric.clone(), copy.deepcopy(metric), pickle.loads(pickle.dumps(metric))):
        assert_same(other.compute(), expected)
        other.reset()
    assert_same(metric.compute(), expected)
    assert_reset(case, metric)


@each_case
def test_state_dict_in_mid_epoch(case):
    batches = case.batches()
    metric = updated(case, batches[:2])
    metric.persistent(True)
    saved = pickle.loads(pickle.dumps(metric.state_dict()))
    for rest in (batches[2:], []):
        resumed = case.metric()
        resumed.persistent(True)
        resumed.load_state_dict(saved)
        feed(resumed, rest)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # not even about a metric that was never updated
            assert_same(resumed.compute(), expected_value(case, None if rest else 2))


@each_case
def test_forward_is_update_and_the_value_of_the_batch(case):
    batches = case.batches()
    metric = case.metric()
    plain = case.metric()
    for batch in batches:
        assert_same(metric(**batch), case.function(**batch))
        plain.update(**batch)
    assert_same(metric.compute(), plain.compute())


class Touched(TorchDispatchMode):
    """Counts the elements that operations read and write."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.elements += sum(
            leaf.numel() for leaf in tree_leaves((args, out)) if isinstance(leaf, torch.Tensor)
        )
        return out


@each_case
def test_forward_costs_the_same_however_long_the_history(case):
    batch = case.batches()[0]
    touched = []
    for updates in (1, 61):
        metric = updated(case, [batch] * updates)
        with Touched() as seen:
            metric(**batch)
        touched.append(seen.elements)
    assert touched[0] == touched[1]


@each_case
def test_update_keeps_no_graph_and_no_alias(case):
    batches = case.batches()[:2]
    expected = case.function(**join(batches))
    inputs = [
        mapped(b, lambda v: v.clone().requires_grad_() if v.is_floating_point() else v.clone())
        for b in batches
    ]
    metric = case.metric()
    for batch in inputs:
        metric(**batch)
    for tensor in tree_leaves(metric.metric_state):
        assert not tensor.requires_grad
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    with torch.no_grad():
        for batch in inputs:
            mapped(batch, torch.Tensor.zero_)
    assert_same(metric.compute(), expected)
    copy.deepcopy(metric)


@each_case
@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str
)
def test_every_floating_dtype_is_accepted(case, dtype):
    batches = case.batches(dtype=dtype)
    expected = case.function(
        **mapped(join(batches), lambda v: v.double() if v.is_floating_point() else v)
    )
    value = updated(case, batches).compute()
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    assert_same(value, expected, atol=tolerance, rtol=tolerance)
    assert {entry.dtype for entry in entries(value)} == {torch.promote_types(dtype, torch.float32)}


@each_case
@pytest.mark.parametrize("change", ["half", "bfloat16", "to", "set_dtype"])
def test_half_precision_casts_keep_the_state_dtype(case, change):
    metric = updated(case, case.batches()[:2])
    module = torch.nn.Module()
    module.metric = metric
    given = {"half": (), "bfloat16": (), "to": (torch.bfloat16,), "set_dtype": (torch.float16,)}[
        change
    ]
    getattr(metric if change == "set_dtype" else module, change)(*given)
    assert_same(feed(metric, case.batches()[2:]).compute(), expected_value(case))
    assert_reset(case, metric)


@each_case
def test_autocast_and_inference_mode_change_nothing(case):
    first, *rest = case.batches()
    with torch.autocast("cpu", torch.bfloat16):
        assert_same(updated(case).compute(), expected_value(case))
    with torch.inference_mode():
        metric = updated(case, [first])
        metric.reset()
        metric.update(**first)
    for batch in rest:
        metric(**batch)
    assert_same(metric.compute(), expected_value(case))


@each_case
def test_update_stays_on_the_device_and_reads_no_value(case):
    # Meta tensors raise where a value is read, and where a tensor of another device joins.
    batches = [mapped(batch, without_values) for batch in case.batches()]
    metric = case.metric(validate_args=False).to("meta")
    with DeviceWatch() as watch:
        feed(metric, batches)
    assert watch.without_device == set()
    assert {tensor.device.type for tensor in tree_leaves(metric.metric_state)} == {"meta"}
    metric.reset()  # frees the tensors before the garbage collector finds them in a cycle
    with pytest.raises(NotImplementedError, match="no data"):  # of a check of values
        case.metric(validate_args=True).to("meta").update(**batches[0])


@each_case
def test_undefined_data_is_nan_with_one_warning(case):
    for batch in (None, *case.undefined):
        metric = updated(case, [] if batch is None else [batch])
        metric._update_count = 1  # silences TorchMetrics' own warning that nothing was seen
        with pytest.warns(UserWarning) as caught:  # noqa: PT030 (the reasons differ by metric)
            value = metric.compute()
        assert len(caught) == 1, [str(warning.message) for warning in caught]
        assert all(bool(entry.isnan().all()) for entry in entries(value))


STEPS = (
    "Cllr",
    "Linkability",
    "TPRAtFPR",
    "CalibrationDistortion",
    "SinglingOut",
    "StrongestAttack",
    "AttributeDisclosure",
    "LocalInformationDisclosure",
    "ReidentificationRate",
)
_ROWS = torch.randn(6, 6, generator=torch.Generator().manual_seed(1))
_EACH = torch.arange(6)
_DEFECTIVE = {
    r"Every speaker has one utterance \(6 speakers\): add more utterances of each": (
        _ROWS,
        _ROWS.flip(0),
        _EACH,
    ),
    r"All utterances \(6\) are of one speaker: add other speakers": (
        _ROWS,
        _ROWS.flip(0),
        0 * _EACH,
    ),
    "All 6 protected embeddings are equal: check the anonymiser": (_ROWS, 0 * _ROWS, _EACH // 2),
    "All 6 original embeddings are equal: check the encoder": (0 * _ROWS, _ROWS, _EACH // 2),
}


@pytest.mark.parametrize("defect", _DEFECTIVE)
@pytest.mark.parametrize("case", EMBEDDING_CASES, ids=str)
def test_warning_of_an_undefined_result_names_its_cause(case, defect):
    metric = case.metric()
    metric.update(*_DEFECTIVE[defect])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        value = metric.compute()
    reasons = [str(each.message) for each in caught if "The result is NaN" in str(each.message)]
    assert all(re.search(defect, reason) for reason in reasons)
    # Equal embeddings disclose nothing, which most metrics can say.
    assert len(reasons) == 1 or (
        reasons == [] and not all(part.isnan().all() for part in entries(value))
    )


SMOOTH = [case for case in CASES if not case.name.startswith(STEPS)]


@pytest.mark.parametrize("case", SMOOTH, ids=str)
def test_forward_has_a_gradient_only_with_the_surrogate(case):
    batch = case.batches()[0]
    moving = [key for key, value in batch.items() if value.is_floating_point()]
    for bandwidth in (0.1, None):
        inputs = {key: value.clone().requires_grad_(key in moving) for key, value in batch.items()}
        if case.smooth:
            metric = case.smooth(bandwidth)
        else:
            metric = case.metric(bandwidth=bandwidth)
        assert metric.is_differentiable == (bandwidth is not None)
        values = [entry for entry in entries(metric(**inputs)) if not entry.isnan().all()]
        assert any(entry.requires_grad for entry in values) == metric.is_differentiable
        if bandwidth is not None:
            sum(entry.nansum() for entry in values if entry.requires_grad).backward()
            gradients = [inputs[key].grad for key in moving if inputs[key].grad is not None]
            assert all(bool(gradient.isfinite().all()) for gradient in gradients)
            assert any(bool((gradient != 0).any()) for gradient in gradients)
        assert not any(tensor.requires_grad for tensor in tree_leaves(metric.metric_state))
        metric.compute()
        copy.deepcopy(metric)


def test_collection_shares_states_and_keeps_values():
    cases = [*SCORE_CASES, *RUN_CASES]
    peers = {"auroc": BinaryAUROC(), "roc": BinaryROC()}
    collection = MetricCollection({**{case.name: case.metric() for case in cases}, **peers})
    batches = RUN_CASES[0].batches()
    # The first batch lies in [0, 1], where torchmetrics leaves scores alone; the others do not.
    batches[0]["preds"] = (batches[0]["preds"] / 8).abs()
    value = feed(collection, batches).compute()
    rows = join(batches)
    for case in cases:
        expected = case.function(**{name: rows[name] for name in case.batches()[0]})
        for key, entry in (
            expected.items() if isinstance(expected, dict) else [(case.name, expected)]
        ):
            assert_same(value[key], entry)
    groups = [sorted(group) for group in collection.compute_groups.values()]
    assert ["EqualErrorRate", "Linkability", "MinCllr", "TPRAtFPR", "ZebraDisclosure"] in groups
    assert collection.MinCllr.scores is collection.EqualErrorRate.scores
    collection.reset()
    assert not collection["MinCllr"].scores


@each_case
def test_collection_concatenates_shared_states_once(case):
    """Rows are put together where they are kept, for all of a collection, and no second time."""
    batches = case.batches()
    collection = feed(MetricCollection({"one": case.metric(), "other": case.metric()}), batches[:2])
    collection.one.compute()
    kept = [(rows, getattr(collection.other, name)) for name, rows in collection.one._list_states()]
    assert all(len(rows) <= 1 and rows is others for rows, others in kept)
    assert_same(feed(collection, batches[2:])["other"].compute(), expected_value(case))


@each_case
def test_a_collection_updated_and_then_called_counts_every_batch_once(case):
    collection = MetricCollection({"one": case.metric(), "other": case.metric()})
    batches = case.batches()
    collection.update(**batches[0])
    assert len(collection.compute_groups) == 1
    for batch in batches[1:3]:
        collection(**batch)
    collection.update(**batches[3])
    for name in ("one", "other"):
        assert_same(collection[name].compute(), expected_value(case))


class OneOfOne:
    """Stands for a process group of this process alone; gathering can be interrupted on the way."""

    def __init__(self):
        self.calls = 0
        self.interrupted_at = None

    def __call__(self, tensor, **_):
        self.calls += 1
        if self.calls == self.interrupted_at:
            raise KeyboardInterrupt
        return [tensor]

    def options(self):
        return {"dist_sync_fn": self, "distributed_available_fn": lambda: True}


@each_case
@pytest.mark.parametrize("when", ["while gathering", "while computing"])
def test_interrupted_compute_keeps_the_state(case, when):
    batches = case.batches()
    group = OneOfOne()
    metric = updated(case, batches[:3], **group.options())
    # the forms and the first state are through
    group.interrupted_at = 3 if when == "while gathering" else None
    if when == "while gathering":
        compute = metric.compute
    else:
        compute = metric._wrap_compute(Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        compute()
    group.interrupted_at = None
    metric.update(**batches[3])
    assert_same(metric.compute(), expected_value(case))
    assert_reset(case, metric)


@each_case
def test_synced_metric_rejects_batches(case):
    batches = case.batches()
    group = OneOfOne()
    metric = updated(case, batches[:2], **group.options())
    metric.sync(group)
    for method in (metric.update, metric):
        with pytest.raises(TorchMetricsUserError, match="call `unsync` first"):
            method(**batches[2])
    metric.unsync()
    assert_same(metric.compute(), expected_value(case, 2))
    assert_reset(case, metric)


@each_case
def test_forward_syncs_with_dist_sync_on_step(case):
    group = OneOfOne()
    metric = case.metric(dist_sync_on_step=True, **group.options())
    for batch in case.batches():
        before = group.calls
        assert_same(metric(**batch), case.function(**batch))
        assert group.calls > before
    assert_same(metric.compute(), expected_value(case))


@each_case
def test_rejected_batch_keeps_the_state(case):
    metric = case.metric()
    (first, second, *_) = case.batches()
    broken = {
        key: None if key in ("preds", "original", "protected") else value
        for key, value in first.items()
    }
    with pytest.raises((TypeError, ValueError)):
        metric.update(**broken)
    metric.update(**first)
    metric.update(**second)
    before = copy.deepcopy(metric.metric_state)
    with pytest.raises((TypeError, ValueError)):
        metric(**broken)
    assert_same(metric.metric_state, before)
    assert_same(metric.compute(), expected_value(case, 2))


@each_case
def test_merge_state_clears_the_cached_value(case):
    batches = case.batches()
    metric = updated(case, batches[:2])
    other = updated(case, batches[2:])
    metric.compute()
    metric.merge_state(other)
    assert metric.update_count == len(batches)
    assert_same(metric.compute(), expected_value(case))


def count_elements(root):
    """Elements of every tensor that can be reached from an object."""
    seen = set()
    count = 0
    todo = [root]
    while todo:
        one = todo.pop()
        if id(one) not in seen and not isinstance(
            one, (type, types.ModuleType, types.FunctionType)
        ):
            seen.add(id(one))
            count += one.numel() if isinstance(one, torch.Tensor) else 0
            todo.extend(gc.get_referents(one))
    return count


@each_case
@pytest.mark.filterwarnings("ignore:.*embeddings equal another")  # a batch is there twice
def test_reset_releases_all_data(case):
    metric = updated(case)
    metric(**case.batches()[0])
    metric.compute()
    metric.reset()
    assert count_elements(metric.__dict__) == count_elements(case.metric().__dict__)


SETTINGS = [
    {},
    {"thresholds": 16},
    {"thresholds": 32},
    {"thresholds": 16, "score_range": (-1, 1)},
    {"thresholds": 16, "score_range": (-4, 4)},
    {"thresholds": 32, "score_range": (-1, 1)},
    {"thresholds": torch.linspace(-1, 1, 18)},
]


@pytest.mark.parametrize("one", range(len(SETTINGS)))
@pytest.mark.parametrize("other", range(len(SETTINGS)))
def test_only_metrics_with_the_same_settings_merge(one, other):
    rows = [join(SCORE_CASES[1].batches())]
    first, second = (updated(SCORE_CASES[1], rows, **SETTINGS[index]) for index in (one, other))
    before = copy.deepcopy(first.metric_state)
    value = first.compute()
    if one == other:
        first.merge_state(second)
        # a share does not change when everything is there twice
        assert_same(first.compute(), value)
        return
    with pytest.raises(ValueError, match=r"same settings|one width|same edges"):
        first.merge_state(second)
    assert_same(first.metric_state, before)


@each_case
def test_a_batch_is_stored_whole_or_not_at_all(case):
    """Wherever an operation of ``update`` fails, nothing of the batch is left."""
    _assert_stored_whole(case.metric, case.batches())


def test_bins_are_stored_whole_or_not_at_all():
    for settings in ({"thresholds": 16}, {"thresholds": 16, "score_range": (-7, 7)}):
        _assert_stored_whole(
            lambda settings=settings: vp.MinCllr(**settings), SCORE_CASES[0].batches()
        )


def _assert_stored_whole(make, batches):
    metric = feed(make(), batches[:1])
    before = copy.deepcopy(metric.metric_state)
    with FailsAt() as counted:
        feed(make(), batches[:1]).update(**batches[1])
    with FailsAt() as counted_of_first:
        feed(make(), batches[:1])
    num_calls = counted.calls - counted_of_first.calls
    for failing in range(1, num_calls + 1):
        error = (torch.OutOfMemoryError, KeyboardInterrupt)[failing % 2]
        with pytest.raises(error), FailsAt(failing, error):
            metric.update(**batches[1])
        assert_same(metric.metric_state, before)
    metric.update(**batches[1])
    assert_same(metric.metric_state, feed(make(), batches[:2]).metric_state)


@pytest.mark.parametrize(
    "settings", [{"thresholds": 16}, {"thresholds": 16, "score_range": (-7, 7)}]
)
def test_forward_of_a_binned_metric_is_its_value_of_the_batch(settings):
    for make in (vp.ZebraDisclosure, vp.Linkability, vp.MinCllr):
        for batch in SCORE_CASES[0].batches():
            metric = make(**settings)
            value = metric(**batch)
            assert_same(value, metric.compute())
            assert_same(value, feed(make(**settings), [batch]).compute())


def test_a_running_window_over_a_view_says_to_take_the_metric():
    with pytest.raises(TypeError, match=r"Run the window over the metric: `Running\(ZebraDiscl"):
        Running(vp.ZebraDisclosure()["d_ece"], window=2)
    with pytest.raises(ValueError, match="`full_state_update` set to `False`"):
        Running(vp.MinCllr(thresholds=16), window=2)  # it would add bins of other ranges
    Running(vp.MinCllr(thresholds=16, score_range=(-7, 7)), window=2)


@each_case
def test_a_running_window_over_a_metric_holds_its_latest_batches(case):
    batches = case.batches()
    running = feed(Running(case.metric(), window=2), batches)
    assert_same(running.compute(), case.function(**join(batches[-2:])))


@each_case
def test_cached_values_keep_their_digits(case):
    metric = updated(case, case.batches()[:2])
    value = metric.compute()
    metric.set_dtype(torch.float16)
    assert_same(metric.compute(), value, atol=0, rtol=0)


@each_case
def test_loading_replaces_what_was_computed(case):
    batches = case.batches()
    first = updated(case, batches[:2])
    second = updated(case, batches)
    for metric in (first, second):
        metric.persistent(True)
        metric.compute()
    saved = second.state_dict()
    first.load_state_dict(saved)
    assert_same(first.compute(), expected_value(case))
    first.reset()
    again = case.metric()
    again.persistent(True)
    again.load_state_dict(saved)  # which the reset has left alone
    assert_same(again.compute(), expected_value(case))


# A matrix of no speaker has no extent.
@pytest.mark.filterwarnings("ignore:Attempting to set identical low and high")
@each_case
def test_plot_draws_one_value_several_and_none(case):
    metric = updated(case)
    figure, axes = metric.plot()
    assert metric.plot(ax=axes)[1] is axes
    figure.canvas.draw()
    metric.plot([metric.compute()] * 2)[0].canvas.draw()
    with pytest.warns(UserWarning, match="The result is NaN|before the ``update`` method"):
        case.metric().plot()[0].canvas.draw()
