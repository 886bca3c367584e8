"""What every metric owes TorchMetrics and Lightning, run over every row of ``cases.py``."""

import copy
import gc
import pickle
import re
import types
import warnings

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
    join,
    mapped,
    updated,
)
from dispatched import Dispatched
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAUROC, BinaryROC
from torchmetrics.utilities.exceptions import TorchMetricsUserError

import vpmetrics as vp

each_case = pytest.mark.parametrize("case", CASES, ids=str)


def again(case, metric):
    """Feed a metric that was reset and see that nothing of before is left."""
    for batch in case.batches()[:2]:
        metric.update(**batch)
    assert_same(metric.compute(), expected_value(case, 2))


def test_every_metric_has_a_test_case():
    assert {type(case.metric()).__name__ for case in CASES} == {
        name for name in vp.__all__ if isinstance(getattr(vp, name), type)
    }


@each_case
def test_class_function_and_reference_agree(case):
    rows = join(case.batches())
    expected = case.reference(**rows)
    for value in (case.function(**rows), updated(case).compute()):
        if isinstance(value, dict):
            value = {key: entry for key, entry in value.items() if not key.endswith(case.unreferenced)}
        assert_same(value, expected, atol=1e-9, coarse=1e-3)


@each_case
def test_reset_clone_pickle_and_copy(case):
    metric, expected = updated(case), expected_value(case)
    for other in (metric.clone(), copy.deepcopy(metric), pickle.loads(pickle.dumps(metric))):
        assert_same(other.compute(), expected)
        other.reset()
    assert_same(metric.compute(), expected)
    metric.reset()
    again(case, metric)


@each_case
def test_state_dict_in_mid_epoch(case):
    batches = case.batches()
    metric = updated(case, batches[:2])
    metric.persistent(True)
    saved = pickle.loads(pickle.dumps(metric.state_dict()))
    resumed = case.metric()
    resumed.persistent(True)
    resumed.load_state_dict(saved)
    for batch in batches[2:]:
        resumed.update(**batch)
    assert_same(resumed.compute(), expected_value(case))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # not even about a metric that was never updated
        restored = case.metric()
        restored.persistent(True)
        restored.load_state_dict(saved)
        assert_same(restored.compute(), expected_value(case, 2))


@each_case
def test_forward_is_update_and_the_value_of_the_batch(case):
    batches = case.batches()
    metric, plain = case.metric(), case.metric()
    for batch in batches:
        assert_same(metric(**batch), case.function(**batch))
        plain.update(**batch)
    assert_same(metric.compute(), plain.compute())


@each_case
def test_forward_costs_the_same_however_long_the_history(case):
    batch = case.batches()[0]
    metric, touched = case.metric(), []
    for updates in (1, 60):
        for _ in range(updates):
            metric.update(**batch)
        with Dispatched() as seen:
            metric(**batch)
        touched.append(seen.elements)
    assert touched[0] == touched[1]


@each_case
def test_update_keeps_no_graph_and_no_alias(case):
    batches = case.batches()[:2]
    expected = case.function(**join(batches))
    inputs = [mapped(b, lambda v: v.clone().requires_grad_() if v.is_floating_point() else v.clone()) for b in batches]
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
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_every_floating_dtype_is_accepted(case, dtype):
    batches = case.batches(dtype=dtype)
    expected = case.function(**mapped(join(batches), lambda v: v.double() if v.is_floating_point() else v))
    value = updated(case, batches).compute()
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    assert_same(value, expected, atol=tolerance, rtol=tolerance)
    for entry in entries(value):
        assert entry.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@each_case
@pytest.mark.parametrize("change", ["half", "bfloat16", "to", "set_dtype"])
def test_half_precision_casts_keep_the_state_dtype(case, change):
    metric = updated(case, case.batches()[:2])
    module = torch.nn.Module()
    module.metric = metric
    if change in ("half", "bfloat16"):
        getattr(module, change)()
    elif change == "to":
        module.to(torch.bfloat16)
    else:
        metric.set_dtype(torch.float16)
    for batch in case.batches()[2:]:
        metric.update(**batch)
    assert_same(metric.compute(), expected_value(case))
    metric.reset()
    again(case, metric)


@each_case
def test_autocast_and_inference_mode_change_nothing(case):
    expected = expected_value(case)
    metric = case.metric()
    with torch.autocast("cpu", torch.bfloat16):
        for batch in case.batches():
            metric.update(**batch)
        assert_same(metric.compute(), expected)
    metric = case.metric()
    with torch.inference_mode():
        metric.update(**case.batches()[0])
        metric.reset()
        metric.update(**case.batches()[0])
    for batch in case.batches()[1:]:
        metric(**batch)
    assert_same(metric.compute(), expected)


@each_case
def test_update_does_not_sync(case):
    metric = case.metric(validate_args=False)
    metric.update(**case.batches()[0])
    with Dispatched() as seen:
        metric.update(**case.batches()[1])
    assert seen.synchronisations == 0, seen.operations
    with Dispatched() as seen:
        case.metric(validate_args=True).update(**case.batches()[1])
    assert seen.synchronisations <= 2, seen.operations  # a list of at most two flags, in one look


@each_case
def test_update_stays_on_the_device_of_its_input(case):
    # Fake tensors raise where devices mix and cannot be read, so this needs no accelerator.
    with FakeTensorMode():
        with torch.device("cuda"):
            metric = case.metric(validate_args=False)
        for batch in case.batches():
            metric.update(**mapped(batch, lambda v: torch.empty(v.shape, dtype=v.dtype, device="cuda")))
        for state in metric.metric_state.values():
            for tensor in state if isinstance(state, list) else [state]:
                assert tensor.device.type == "cuda"


@each_case
def test_undefined_data_is_nan_with_one_warning(case):
    for batch in (None, *case.undefined):
        metric = case.metric()
        metric._update_count = 1  # nothing seen, and TorchMetrics' own warning about that silenced
        if batch is not None:
            metric.update(**batch)
        with pytest.warns(UserWarning) as caught:  # noqa: PT030 (the reasons differ by metric)
            value = metric.compute()
        assert len(caught) == 1, [str(warning.message) for warning in caught]
        assert all(bool(entry.isnan().all()) for entry in entries(value))


STEPS = (
    "Cllr", "Linkability", "TPRAtFPR", "CalibrationDistortion", "SinglingOut", "StrongestAttack", "AttributeDisclosure",
)  # fmt: skip
_OTHERS = torch.randn(6, 6, generator=torch.Generator().manual_seed(1))
_DEFECTIVE = {
    r"Every speaker has one utterance \(6 speakers\): add more utterances of each": (
        _OTHERS,
        _OTHERS.flip(0),
        torch.arange(6),
    ),
    r"All utterances \(6\) are of one speaker: add other speakers": (_OTHERS, _OTHERS.flip(0), torch.zeros(6).long()),
    "All 6 protected embeddings are equal: check the anonymiser": (_OTHERS, 0 * _OTHERS, torch.arange(6) // 2),
    "All 6 original embeddings are equal: check the encoder": (0 * _OTHERS, _OTHERS, torch.arange(6) // 2),
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
    assert len(reasons) == 1 or (reasons == [] and not all(part.isnan().all() for part in entries(value)))


SMOOTH = [case for case in CASES if not case.name.startswith(STEPS)]


@pytest.mark.parametrize("case", SMOOTH, ids=str)
def test_forward_has_a_gradient_only_with_the_surrogate(case):
    batch = case.batches()[0]
    moving = [key for key, value in batch.items() if value.is_floating_point()]
    for bandwidth in (0.1, None):
        inputs = {key: value.clone().requires_grad_(key in moving) for key, value in batch.items()}
        metric = case.smooth(bandwidth) if case.smooth else case.metric(bandwidth=bandwidth)
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
    metrics = {case.name: case.metric() for case in SCORE_CASES}
    peers = {"auroc": BinaryAUROC(), "roc": BinaryROC()}
    collection = MetricCollection({**metrics, **peers})
    # The first batch lies in [0, 1], where torchmetrics leaves scores alone; the second does not.
    batches = [
        {**batch, "preds": batch["preds"] / (8 if k == 0 else 1)} for k, batch in enumerate(SCORE_CASES[0].batches())
    ]
    batches[0]["preds"] = batches[0]["preds"].abs().clamp(max=1)
    for batch in batches:
        collection.update(**batch)
    value = collection.compute()
    for case in SCORE_CASES:
        expected = case.function(**join(batches))
        for key, entry in expected.items() if isinstance(expected, dict) else [(case.name, expected)]:
            assert_same(value[key], entry)
    groups = [sorted(group) for group in collection.compute_groups.values()]
    assert ["EqualErrorRate", "Linkability", "MinCllr", "TPRAtFPR", "ZebraDisclosure"] in groups
    assert collection.MinCllr.scores is collection.EqualErrorRate.scores
    collection.reset()
    assert not collection["MinCllr"].scores


@each_case
def test_collection_concatenates_shared_states_once(case):
    """Rows are put together where they are kept, for all of a collection, and no second time."""
    collection = MetricCollection({"one": case.metric(), "other": case.metric()})
    batches = case.batches()
    for batch in batches[:2]:
        collection.update(**batch)
    collection.one.compute()
    kept = [(rows, getattr(collection.other, name)) for name, rows in collection.one._list_states()]
    assert all(len(rows) <= 1 and rows is others for rows, others in kept)
    for batch in batches[2:]:
        collection.update(**batch)
    assert_same(collection["other"].compute(), expected_value(case))


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


def test_score_metrics_and_run_metrics_share_a_collection():
    cases = [*SCORE_CASES, *RUN_CASES]
    collection = MetricCollection({case.name: case.metric() for case in cases})
    batches = RUN_CASES[0].batches()
    for batch in batches:
        collection.update(**batch)
    for case in cases:
        rows = join(batches if case in RUN_CASES else case.batches())
        assert_same(collection[case.name].compute(), case.function(**rows))


class OneOfOne:
    """Stands for a process group of this process alone; gathering can be interrupted on the way."""

    def __init__(self):
        self.calls, self.interrupted_at = 0, None

    def __call__(self, tensor, **_):
        self.calls += 1
        if self.calls == self.interrupted_at:
            raise KeyboardInterrupt
        return [tensor]

    def options(self):
        return {"dist_sync_fn": self, "distributed_available_fn": lambda: True}


def interrupted():
    raise KeyboardInterrupt


@each_case
@pytest.mark.parametrize("when", ["while gathering", "while computing"])
def test_interrupted_compute_keeps_the_state(case, when):
    batches, group = case.batches(), OneOfOne()
    metric = updated(case, batches[:3], **group.options())
    group.interrupted_at = 3 if when == "while gathering" else None  # the forms and the first state are through
    compute = metric.compute
    if when == "while computing":
        metric.compute = metric._wrap_compute(interrupted)
    with pytest.raises(KeyboardInterrupt):
        metric.compute()
    metric.compute = compute
    metric.update(**batches[3])
    assert_same(metric.compute(), expected_value(case))
    metric.reset()
    again(case, metric)


@each_case
def test_synced_metric_rejects_batches_and_can_be_reset(case):
    batches, group = case.batches(), OneOfOne()
    metric = updated(case, batches[:2], **group.options())
    metric.sync(group)
    for feed in (metric.update, metric):
        with pytest.raises(TorchMetricsUserError, match="call `unsync` first"):
            feed(**batches[2])
    metric.unsync()
    assert_same(metric.compute(), expected_value(case, 2))
    metric.sync(group)
    metric.reset()
    again(case, metric)


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
    batches = case.batches()
    metric = case.metric()
    broken = {**batches[0], "preds": None, "original": None, "protected": None}
    with pytest.raises((TypeError, ValueError)):
        metric.update(**{key: broken[key] for key in batches[0]})
    assert not metric.update_called
    metric.update(**batches[0])
    metric.update(**batches[1])
    before = metric.compute()
    with pytest.raises((TypeError, ValueError)):
        metric(**{key: broken[key] for key in batches[0]})
    assert metric.compute() is before
    assert_same(before, expected_value(case, 2))


@each_case
def test_merge_state_clears_the_cached_value(case):
    batches = case.batches()
    metric, other = updated(case, batches[:2]), updated(case, batches[2:])
    metric.compute()
    metric.merge_state(other)
    assert metric.update_count == len(batches)
    assert_same(metric.compute(), expected_value(case))


def _tensors_of(root):
    """Every tensor that can be reached from an object."""
    seen, found, todo = set(), [], [root]
    while todo:
        one = todo.pop()
        if id(one) in seen or isinstance(one, (type, types.ModuleType, types.FunctionType)):
            continue
        seen.add(id(one))
        if isinstance(one, torch.Tensor):
            found.append(one)
        todo.extend(gc.get_referents(one))
    return found


@each_case
def test_reset_releases_all_data(case):
    fresh = sum(tensor.numel() for tensor in _tensors_of(case.metric().__dict__))
    metric = updated(case, case.batches())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*embeddings equal another")  # a batch is there twice
        metric(**case.batches()[0])
        metric.compute()
    metric.reset()
    assert sum(tensor.numel() for tensor in _tensors_of(metric.__dict__)) == fresh


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
def test_only_metrics_with_the_same_settings_merge(one):
    rows = join(SCORE_CASES[0].batches())
    for other in range(len(SETTINGS)):
        metrics = [vp.MinCllr(**SETTINGS[index]) for index in (one, other)]
        for metric in metrics:
            metric.update(**rows)
        before, value = copy.deepcopy(metrics[0].metric_state), metrics[0].compute()
        if one == other:
            metrics[0].merge_state(metrics[1])
            assert_same(metrics[0].compute(), value)  # a share does not change when everything is there twice
            continue
        with pytest.raises(ValueError, match=r"same settings|one width|same edges"):
            metrics[0].merge_state(metrics[1])
        assert_same(metrics[0].metric_state, before)


@each_case
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_module_with_the_metric_can_be_scripted(case):
    torch.jit.script(case.metric())
