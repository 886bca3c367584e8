"""What every metric owes TorchMetrics and Lightning, run over every row of ``cases.py``."""

from __future__ import annotations

import copy
import gc
import pickle
import warnings
import weakref

import pytest
import torch
import torch.multiprocessing as mp
from cases import CASES, SCORE_CASES, join
from dispatched import Dispatched
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAUROC, BinaryROC

each_case = pytest.mark.parametrize("case", CASES, ids=str)


def assert_same(value, expected, atol=1e-12, rtol=1e-12):
    """Equal in every entry, whatever the container; NaN equals NaN."""
    if isinstance(expected, dict):
        assert set(value) == set(expected)
        for key in expected:
            assert_same(value[key], expected[key], atol, rtol)
    elif isinstance(expected, tuple):
        assert len(value) == len(expected)
        for one, other in zip(value, expected, strict=True):
            assert_same(one, other, atol, rtol)
    else:
        value, expected = torch.as_tensor(value).double(), torch.as_tensor(expected).double()
        assert_close(value, expected, atol=atol, rtol=rtol, equal_nan=True)


def entries(value):
    """Everything in a value that is not a whole number."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else [value]
    return [part for part in parts if part.is_floating_point()]


def updated(case, batches=None, **kwargs):
    metric = case.metric(**kwargs)
    for batch in case.batches() if batches is None else batches:
        metric.update(**batch)
    return metric


@each_case
def test_class_function_and_reference_agree(case):
    rows = join(case.batches())
    expected = case.reference(**rows)
    assert_same(case.function(**rows), expected, atol=1e-9)
    assert_same(updated(case).compute(), expected, atol=1e-9)


@each_case
def test_order_and_batch_split_do_not_matter(case):
    rows = join(case.batches())
    count = len(next(iter(rows.values())))
    order = torch.randperm(count, generator=torch.Generator().manual_seed(1))
    shuffled = {key: value[order] for key, value in rows.items()}
    pieces = [{key: value[start : start + 31] for key, value in shuffled.items()} for start in range(0, count, 31)]
    assert_same(updated(case, pieces).compute(), updated(case).compute())


@each_case
def test_reset_clone_pickle_and_copy(case):
    metric = updated(case)
    expected = metric.compute()
    for other in (metric.clone(), copy.deepcopy(metric), pickle.loads(pickle.dumps(metric))):
        assert_same(other.compute(), expected)
        other.reset()
    assert_same(metric.compute(), expected)
    metric.reset()
    first = case.batches()[0]
    metric.update(**first)
    assert_same(metric.compute(), case.function(**first))


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
    assert_same(resumed.compute(), updated(case).compute())
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # not even about a metric that was never updated
        restored = case.metric()
        restored.persistent(True)
        restored.load_state_dict(saved)
        assert_same(restored.compute(), case.function(**join(batches[:2])))


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
    for _ in range(60):
        with Dispatched() as seen:
            metric(**batch)
        touched.append(seen.elements)
    assert touched[-1] == touched[1]


@each_case
def test_keeps_no_graph_and_no_alias(case):
    batch = case.batches()[0]
    expected = case.function(**batch)
    inputs = {k: v.clone().requires_grad_() if v.is_floating_point() else v.clone() for k, v in batch.items()}
    metric = case.metric()
    metric(**inputs)
    for state in metric.metric_state.values():
        for tensor in state if isinstance(state, list) else [state]:
            assert not tensor.requires_grad
            assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    with torch.no_grad():
        for value in inputs.values():
            value.zero_()
    assert_same(metric.compute(), expected)
    copy.deepcopy(metric)


@each_case
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_every_floating_type(case, dtype):
    batches = case.batches(dtype=dtype)
    expected = case.function(**{k: v.double() if v.is_floating_point() else v for k, v in join(batches).items()})
    value = updated(case, batches).compute()
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    assert_same(value, expected, atol=tolerance, rtol=tolerance)
    for entry in entries(value):
        assert entry.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@each_case
@pytest.mark.parametrize("change", ["half", "bfloat16", "to", "set_dtype"])
def test_casting_a_model_to_half_precision_leaves_measurements_alone(case, change):
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
    assert_same(metric.compute(), updated(case).compute())
    metric.reset()
    metric.update(**case.batches()[0])
    assert_same(metric.compute(), case.function(**case.batches()[0]))


@each_case
def test_autocast_and_inference_mode_change_nothing(case):
    expected = updated(case).compute()
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
def test_update_never_waits_for_the_device(case):
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
    # Fake tensors refuse to mix devices and cannot be read, so this needs no accelerator.
    with FakeTensorMode():
        with torch.device("cuda"):
            metric = case.metric(validate_args=False)
        for batch in case.batches():
            metric.update(**{k: torch.empty(v.shape, dtype=v.dtype, device="cuda") for k, v in batch.items()})
        for state in metric.metric_state.values():
            for tensor in state if isinstance(state, list) else [state]:
                assert tensor.device.type == "cuda"


@each_case
def test_reset_frees_memory(case):
    metric = updated(case)
    kept = [weakref.ref(t) for s in metric.metric_state.values() if isinstance(s, list) for t in s]
    metric.reset()
    gc.collect()
    assert all(reference() is None for reference in kept)


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


SMOOTH = [case for case in CASES if case.name not in ("Cllr", "Linkability")]


@pytest.mark.parametrize("case", SMOOTH, ids=str)
def test_forward_has_a_gradient_where_the_surrogate_is_on_and_only_there(case):
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
        for state in metric.metric_state.values():
            assert not any(tensor.requires_grad for tensor in (state if isinstance(state, list) else [state]))
        metric.compute()
        copy.deepcopy(metric)


def test_siblings_share_one_copy_and_keep_their_values():
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
    assert ["EqualErrorRate", "Linkability", "MinCllr", "ZebraDisclosure"] in groups
    assert collection.MinCllr.scores is collection.EqualErrorRate.scores
    collection.reset()
    assert not collection["MinCllr"].scores


def test_a_collection_can_be_called():
    collection = MetricCollection({case.name: case.metric() for case in SCORE_CASES})
    for batch in SCORE_CASES[0].batches():
        collection(**batch)
    alone = {case.name: updated(case).compute() for case in SCORE_CASES}
    assert_same(collection.compute()["MinCllr"], alone["MinCllr"])


def _share(rank, shares):
    """The batches a process sees: uneven, and in the last case none at all."""
    return {"uneven": [0] if rank == 0 else [1, 2, 3], "empty": [] if rank == 0 else [0, 1, 2, 3]}[shares]


def _process(rank, world, path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    warnings.simplefilter("ignore")
    for case in CASES:
        batches = case.batches()
        expected = updated(case, batches, sync_on_compute=False).compute()
        for shares in ("uneven", "empty"):
            metric = case.metric()
            for index in _share(rank, shares):
                metric.update(**batches[index])
            before = {k: len(v) for k, v in metric.metric_state.items() if isinstance(v, list)}
            assert_same(metric.compute(), expected)
            assert {k: len(v) for k, v in metric.metric_state.items() if isinstance(v, list)} == before
            if case.name == "VoicePrivacy":
                assert_same(metric.report().scalars, expected)
        nothing = case.metric().compute()
        assert all(bool(entry.isnan().all()) for entry in entries(nothing))
    torch.distributed.destroy_process_group()


def test_processes_with_uneven_and_with_no_batches(tmp_path):
    mp.spawn(_process, args=(2, tmp_path / "meeting"), nprocs=2)


@each_case
def test_merging_two_metrics(case):
    batches = case.batches()
    one, other = updated(case, batches[:1]), updated(case, batches[1:])
    one.merge_state(other)
    assert_same(one.compute(), updated(case).compute())


@each_case
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_module_that_holds_it_can_be_scripted(case):
    torch.jit.script(case.metric())
