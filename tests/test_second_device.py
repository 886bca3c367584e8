"""On a device with memory of its own: the same numbers as on the CPU, no mixing, and few looks from the host."""

from __future__ import annotations

import inspect
import itertools
from dataclasses import replace

import pytest
import test_contract as contract
import torch
from cases import CASES, mapped
from second_device import compiler, second_device

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler to build a second device with")


@pytest.fixture(scope="module")
def device():
    return second_device()


def moved(case, device):
    """The case with metrics and batches on the device; what is expected comes from the CPU."""

    def there(batch):
        return mapped(batch, lambda tensor: tensor.to(device))

    def on_host(function):
        return lambda **rows: function(**mapped(rows, torch.Tensor.cpu))

    return replace(
        case,
        metric=lambda **kwargs: case.metric(**kwargs).to(device),
        function=on_host(case.function),
        reference=on_host(case.reference),
        batches=lambda **kwargs: [there(batch) for batch in case.batches(**kwargs)],
        undefined=tuple(map(there, case.undefined)),
        smooth=case.smooth and (lambda bandwidth: case.smooth(bandwidth).to(device)),
    )


def variants(check):
    """Every way the contract suite calls a check, but for the case."""
    marks = [mark.args for mark in check.pytestmark if mark.name == "parametrize" and mark.args[0] != "case"]
    return [dict(zip([name for name, _ in marks], row, strict=True)) for row in itertools.product(*[v for _, v in marks])]


FAKE = {"test_update_stays_on_the_device_of_its_input"}  # of fake tensors on a device that is not there
CHECKS = [
    pytest.param(check, variant, id="-".join([name.removeprefix("test_"), *map(str, variant.values())]))
    for name, check in vars(contract).items()
    if name.startswith("test_") and name not in FAKE and "case" in inspect.signature(check).parameters
    for variant in variants(check)
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize(("check", "variant"), CHECKS)
def test_the_contract_holds_there(check, variant, case, device):
    if check is contract.test_forward_has_a_gradient_where_the_surrogate_is_on_and_only_there and case not in contract.SMOOTH:
        pytest.skip("has no surrogate")
    check(case=moved(case, device), **variant)
