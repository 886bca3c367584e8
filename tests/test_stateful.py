"""Any sequence of what is done to a metric leaves exactly the accepted batches.

Those since the last reset.
"""

import copy
import os
import pickle
import warnings

import pytest
import torch
from cases import CASES, assert_same, feed
from faults import FailsAt
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import vpmetrics as vp

SEQUENCES = int(os.environ.get("VPMETRICS_SEQUENCES", "200"))  # over all metrics together
METRICS = {case.name: case for case in CASES}
SETTINGS = {
    "MinCllr, learnt bins": (METRICS["MinCllr"], lambda: vp.MinCllr(thresholds=16)),
    "MinCllr, given bins": (
        METRICS["MinCllr"],
        lambda: vp.MinCllr(thresholds=16, score_range=(-7, 7)),
    ),
}
MACHINES = {name: (case, case.metric) for name, case in METRICS.items()} | SETTINGS
# whose value is compared elsewhere
SLOW = ("VoicePrivacy", "StrongestAttack", "AttributeDisclosure", "SinglingOut")
STEPS = (
    "update",
    "forward",
    "compute",
    "reset",
    "merge",
    "load",
    "pickle",
    "copy",
    "move",
    "interrupt",
)


def load_into_another(metric, make):
    """A new metric with the saved states."""
    metric.persistent(True)
    loaded = make()
    loaded.persistent(True)
    loaded.load_state_dict(copy.deepcopy(metric.state_dict()))
    return loaded


REPLACED_BY = {  # the metric that goes on
    "load": load_into_another,
    "pickle": lambda metric, _: pickle.loads(pickle.dumps(metric)),
    "copy": lambda metric, _: metric.clone(),
}
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def take_step(metric, make, name, batch, number):
    """Do one thing to a metric; return the metric that goes on, and whether the batch was added."""
    if name in REPLACED_BY:
        return REPLACED_BY[name](metric, make), False
    if name == "interrupt":
        try:
            with FailsAt(1 + number, KeyboardInterrupt):
                metric.update(**batch)
        except KeyboardInterrupt:
            return metric, False
        return metric, True
    actions = {
        "update": lambda: metric.update(**batch),
        "forward": lambda: metric(**batch),
        "merge": lambda: metric.merge_state(feed(make(), [batch])),
        "compute": metric.compute,
        "reset": metric.reset,
        "move": lambda: metric.to("cpu").set_dtype(DTYPES[number % 3]),
    }
    actions[name]()
    return metric, name in ("update", "forward", "merge")


def sorted_rows(state):
    """The rows of a state in an order of their own; the same text of another batch counts once."""
    if isinstance(state, list) and state:
        joined = torch.cat(state)
    else:
        joined = state
    if isinstance(joined, list):
        return None
    if joined.dim() == 0 or joined.shape[0] == 0:
        return joined if joined.dim() == 0 else None
    if joined.dtype == torch.uint8 and joined.dim() == 1:
        return None
    rows = joined.reshape(len(joined), -1).double()
    return torch.tensor(sorted(rows.tolist()))


def assert_holds(metric, make, accepted):
    """The metric has the states of a new one that was fed with the accepted batches."""
    expected = feed(make(), accepted)
    for name, state in metric.metric_state.items():
        got = sorted_rows(state)
        wanted = sorted_rows(getattr(expected, name))
        assert (got is None) == (wanted is None), name
        if got is not None:
            assert_same(got, wanted)


@pytest.mark.parametrize("name", MACHINES)
@settings(
    max_examples=max(1, SEQUENCES // len(MACHINES)),
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(STEPS), st.integers(0, 3), st.integers(0, 40)),
        min_size=1,
        max_size=8,
    )
)
def test_any_sequence_leaves_the_accepted_batches(name, steps):
    case, make = MACHINES[name]
    is_slow = name in SLOW
    batches = case.batches()
    metric = make()
    accepted = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step, index, number in steps:
            if is_slow and step in ("compute", "forward"):
                step = "update"
            metric, is_added = take_step(metric, make, step, batches[index], number)
            if step == "reset":
                accepted = []
            if is_added:
                accepted = [*accepted, batches[index]]
            assert_holds(metric, make, accepted)
        if not is_slow:
            assert_same(metric.compute(), feed(make(), accepted).compute(), atol=1e-9, coarse=1e-3)
