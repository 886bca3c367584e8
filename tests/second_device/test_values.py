"""On a device with memory of its own: the same numbers as on the CPU, and no mixing."""

import copy
import importlib
from dataclasses import replace
from typing import ClassVar

import pytest
import test_contract as contract
import torch
from cases import EMBEDDING_CASES, SCORE_CASES, assert_same
from leaking_voices import by_hand
from loss_batches import LOSSES
from samples import voices
from torch.testing import assert_close
from training import PACKAGES, fit, watch

import vpmetrics as vp
from second_device import sent
from vpmetrics import functional as F
from vpmetrics._scores import pair_blocks
from vpmetrics.attacks import KernelRidge, Plain, RidgeToOriginal
from vpmetrics.losses import DisclosureLoss
from vpmetrics.scoring import PLDA

pytestmark = pytest.mark.slow


def moved(case, device):
    """The case with metrics and batches on the device; what is expected comes from the CPU."""

    def on_host(function):
        return lambda **rows: function(**sent(rows, "cpu"))

    return replace(
        case,
        metric=lambda **kwargs: case.metric(**kwargs).to(device),
        function=on_host(case.function),
        reference=on_host(case.reference),
        batches=lambda **kwargs: [sent(batch, device) for batch in case.batches(**kwargs)],
        undefined=tuple(sent(batch, device) for batch in case.undefined),
        smooth=case.smooth and (lambda bandwidth: case.smooth(bandwidth).to(device)),
    )


# Those that move, keep or make tensors.
CHECKS_OF_STATES = (
    contract.test_reset_clone_pickle_and_copy,
    contract.test_update_keeps_no_graph_and_no_alias,
    contract.test_half_precision_casts_keep_the_state_dtype,
    contract.test_merge_state_clears_the_cached_value,
)
CHECKS_OF_VALUES = (
    contract.test_forward_is_update_and_the_value_of_the_batch,
    contract.test_every_floating_dtype_is_accepted,
    contract.test_undefined_data_is_nan_with_one_warning,
    contract.test_forward_has_a_gradient_only_with_the_surrogate,
)
# Metrics of embeddings share their states; these two have more of them.
SHARE_STATES = [
    case
    for case in EMBEDDING_CASES
    if str(case) not in ("VoiceSimilarityMatrix", "StrongestAttack")
]


def checks():
    """Each check with each of its cases, and the last way the contract tests call it.

    Others differ little here.
    """
    for check in (*CHECKS_OF_STATES, *CHECKS_OF_VALUES):
        values = dict(mark.args for mark in check.pytestmark if mark.name == "parametrize")
        for case in values.pop("case"):
            if check in CHECKS_OF_VALUES or case not in SHARE_STATES:
                last = {name: choices[-1] for name, choices in values.items()}
                yield pytest.param(
                    check, case, last, id=f"{check.__name__.removeprefix('test_')}-{case}"
                )


@pytest.mark.parametrize(("check", "case", "last"), list(checks()))
def test_metric_contract_holds_on_the_device(check, case, last, device):
    check(case=moved(case, device), **last)


def test_tensors_on_two_devices_raise(device):
    there, here = torch.ones(3, device=device), torch.ones(3)
    for mix in (
        torch.add,
        torch.dot,
        lambda a, b: torch.cat([a, b]),
        lambda a, b: torch.where(a > 0, b, a),
    ):
        with pytest.raises(RuntimeError, match=r"on (one|the same) device"):
            mix(there, here)
    with pytest.raises(ValueError, match="`preds` and `target` to be on one device"):
        F.min_cllr(there, here.long())
    with pytest.raises(ValueError, match="`original` and `speakers` to be on one device"):
        vp.VoicePrivacy(attacks=None).to(device).update(there[None], there[None], torch.tensor([0]))


def utterances(device="cpu", *columns):
    """Five utterances of each of twelve speakers.

    Among the recordings one of each speaker is there twice.
    """
    number = torch.arange(60) % 5  # of the utterance
    rows = voices(utterances=5)
    known = {
        "utterances": torch.arange(60) - (number == 4).long(),
        "sessions": number % 3,
        "groups": rows["speakers"] // 6,
        "is_reference": number % 2 == 0,
    }
    return sent(rows | {name: known[name] for name in columns}, device)


SUITES = {
    "attacked": ({"attacks": "standard"}, ()),
    "binned": ({}, ()),
    "sessions": ({}, ("sessions", "utterances")),
    "groups": ({}, ("groups",)),
    "enrolment": ({"enrolment": "speaker"}, ("is_reference",)),
    "population": ({"sizes": (2, 5)}, ()),
    "smooth": ({"bandwidth": 0.1}, ()),
    "distances": (
        {"scoring": "euclidean", "similarity": "sigmoid", "rank_model": "beta_binomial"},
        (),
    ),
    "PLDA": ({"scoring": PLDA().fit(utterances()["original"], utterances()["speakers"])}, ()),
}


@pytest.mark.filterwarnings(
    "ignore:Scores of .* share bins", "ignore:.* embeddings equal another one"
)
@pytest.mark.parametrize("name", SUITES)
def test_suite_matches_the_cpu_for_every_setting(name, device, monkeypatch):
    monkeypatch.setattr(pair_blocks, "FEW_PAIRS", 0 if name == "binned" else pair_blocks.FEW_PAIRS)
    monkeypatch.setattr(pair_blocks, "BLOCK_SIZE", 16)
    settings, columns = SUITES[name]
    reports = []
    for place in ("cpu", device):
        # A scoring with tensors is a module, and moves.
        given = {
            key: copy.deepcopy(value).to(place) if key == "scoring" and name == "PLDA" else value
            for key, value in settings.items()
        }
        metric = vp.VoicePrivacy(**{"attacks": None, "metrics": "all"} | given).to(place)
        metric.update(**utterances(place, *columns))
        assert_same(metric.report().scalars, metric.compute())
        reports.append(metric.report())
    here, there = reports
    assert_same(there.scalars, here.scalars, atol=1e-9, rtol=1e-9)
    assert there.groups.keys() == here.groups.keys()
    assert all(value.device.type == "second" for value in there.scalars.values())


@pytest.mark.parametrize(
    "settings",
    [
        {"thresholds": 32},
        {"thresholds": 16, "score_range": (-4.0, 4.0)},
        {"thresholds": torch.linspace(-3, 3, 9)},
    ],
    ids=["learnt", "ranged", "given"],
)
@pytest.mark.parametrize("kind", [vp.ZebraDisclosure, vp.MinCllr, vp.EqualErrorRate])
def test_histogram_error_bounds_match_the_cpu(kind, settings, device):
    here, there = (kind(**settings).to(place) for place in ("cpu", device))
    for batch in SCORE_CASES[0].batches():
        here.update(**batch)
        there.update(**sent(batch, device))
    assert_same(there.compute(), here.compute())
    assert_same(there.error_bound(), here.error_bound())


def scored(device):
    return [sent(SCORE_CASES[0].batches()[0], device)[key] for key in ("preds", "target")]


FUNCTIONS = {  # those that no metric calls
    "isotonic_regression": lambda d: F.isotonic_regression(utterances(d)["original"]),
    "pav_llr": lambda d: F.pav_llr(*scored(d), laplace=True),
    "pav_llr, smooth": lambda d: F.pav_llr(*scored(d), bandwidth=0.1),
    "ece_profile": lambda d: F.ece_profile(*scored(d), torch.linspace(-4, 4, 9).to(d)),
    "raw_equal_error_rate": lambda d: F.raw_equal_error_rate(*scored(d)),
    "min_dcf": lambda d: F.min_dcf(*scored(d)),
    "diagonal_dominance": lambda d: F.diagonal_dominance(
        F.voice_similarity_matrix(**utterances(d)).op, True
    ),
    "fit_beta_binomial": lambda d: F.fit_beta_binomial(
        torch.tensor([40.0, 20.0, 10.0, 10.0]).to(d)
    ),
    "local_information_disclosure": lambda d: F.local_information_disclosure(
        utterances(d)["original"], utterances(d)["speakers"], 1.5
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_match_the_cpu(name, device):
    here, there = (FUNCTIONS[name](place) for place in (torch.device("cpu"), device))
    assert_same(there, here)


@pytest.mark.parametrize(
    "loss",
    [*LOSSES, DisclosureLoss(straight_through=True)],
    ids=["OP", "OP+", "PP", "both", "exact"],
)
def test_losses_match_the_cpu(loss, device):
    found = []
    for place in ("cpu", device):
        module, rows = copy.deepcopy(loss).to(place), utterances(place, "sessions")
        protected = rows["protected"].requires_grad_()
        # The attack on past batches begins with the eleventh.
        batches = 12 if "past" in getattr(loss, "attacks", ()) else 2
        values = [
            module(rows["original"], protected, rows["speakers"], rows["sessions"])
            for _ in range(batches)
        ]
        torch.stack(values).sum().backward()
        found.append((torch.stack(values).detach(), protected.grad))
    (values, gradient), (values_there, gradient_there) = found
    assert values_there.device.type == gradient_there.device.type == "second"
    assert_close(values_there.cpu(), values, rtol=1e-9, atol=1e-12)
    assert_close(gradient_there.cpu(), gradient, rtol=1e-6, atol=1e-9)


def test_observed_moments_move_between_devices(device):
    rows = utterances(device)
    values = []
    for place in (device, "cpu"):
        metric = vp.StrongestAttack(attacks=[Plain(), RidgeToOriginal(), KernelRidge()]).to(device)
        metric.observe(rows["original"] + 1, rows["protected"] - 1, rows["speakers"])
        metric.update(**rows)
        values.append(metric.to(place).compute())
    assert_same(values[1], values[0], atol=1e-9)


@pytest.mark.filterwarnings("ignore::UserWarning:.*lightning.*", "ignore::FutureWarning")
@pytest.mark.parametrize("package", PACKAGES)
def test_monitored_training_logs_match_the_cpu(package, device):
    pl = importlib.import_module(package)
    accelerators, strategies = (
        importlib.import_module(f"{package}.{part}") for part in ("accelerators", "strategies")
    )

    class OnSecond(accelerators.CPUAccelerator):
        def setup_device(self, device):
            assert device.type == "second"

    class Where(pl.Callback):
        seen: ClassVar[set] = set()

        def on_validation_batch_end(self, trainer, module, outputs, *_):
            places = (
                trainer.strategy.root_device,
                outputs["protected"].device,
                module.layer.weight.device,
            )
            self.seen.update(place.type for place in places)

    monitor, strategy = (
        watch(),
        strategies.SingleDeviceStrategy(device=device, accelerator=OnSecond()),
    )
    fit(pl, [monitor, Where()], epochs=2, strategy=strategy, accelerator="auto")
    assert Where.seen == {"second"}
    for row, share in zip(monitor.history, (0.9, 0.6), strict=True):
        values = by_hand(share)
        assert_same({name: row[name] for name in values}, values, atol=1e-5)
