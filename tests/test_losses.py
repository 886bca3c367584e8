"""The losses: their values, their edges, the blind spot they close, and a short training on the bundled voices."""

from __future__ import annotations

import copy
import math
import warnings

import numpy as np
import pytest
import reference
import torch
from dispatched import Dispatched
from torch import nn
from torch.testing import assert_close

from vpmetrics._scores.measures import expected_disclosure
from vpmetrics._scores.smooth import soft_counts
from vpmetrics._scores.steps import Steps
from vpmetrics.data import demo_voices
from vpmetrics.functional import zebra_disclosure
from vpmetrics.losses import DisclosureLoss, DistinctivenessLoss, PseudonymisationLoss
from vpmetrics.losses.attackers import shine_through
from vpmetrics.losses.pairs import FULL_DISCLOSURE

LOSSES = [
    DisclosureLoss(),
    DisclosureLoss(centred=True, flatness=1.0, attacks=("batch", "past"), steadiness=1.0),
    DistinctivenessLoss(),
    PseudonymisationLoss(),
]
each_loss = pytest.mark.parametrize("loss", LOSSES, ids=["OP", "OP+", "PP", "both"])
undefined = pytest.mark.filterwarnings("ignore:.*batches so far had no two utterances")


def batch(seed=0, speakers=8, utterances=6, width=12, noise=0.5, dtype=torch.float32):
    draw = torch.Generator().manual_seed(seed)
    names = torch.arange(speakers).repeat_interleave(utterances)
    voices, voices_after = (torch.randn(speakers, width, generator=draw, dtype=torch.float64) for _ in range(2))
    original, protected = (
        side[names] + noise * torch.randn(len(names), width, generator=draw, dtype=torch.float64)
        for side in (voices, voices + voices_after)
    )
    return original.to(dtype), protected.to(dtype), names


def trials(original, protected, speakers, condition):
    """Scores and labels, by the definition: OP every ordered pair but k = l, PP every unordered pair."""
    sides = {"O": original.double().numpy(), "P": protected.double().numpy()}
    first, second = (sides[side] / np.linalg.norm(sides[side], axis=1, keepdims=True) for side in condition)
    pairs = [
        (k, l)
        for k in range(len(first))
        for l in range(len(first))  # noqa: E741
        if (k < l if condition == "PP" else k != l)
    ]
    rows, columns = np.array(pairs).T
    names = speakers.numpy()
    return (first[rows] * second[columns]).sum(1), (names[rows] == names[columns]).astype(int)


def exact(original, protected, speakers, condition="OP", sign=1):
    scores, target = trials(original.detach(), protected.detach(), speakers, condition)
    return reference.zebra.zebra_disclosure(sign * scores, target)["d_ece"]


def test_straight_through_returns_the_exact_values():
    rows = batch(dtype=torch.float64)
    both_ways = exact(*rows) + exact(*rows, sign=-1)
    assert DisclosureLoss(straight_through=True)(*rows).item() == pytest.approx(both_ways, abs=1e-9)
    missing = FULL_DISCLOSURE - exact(*rows, condition="PP")
    assert DistinctivenessLoss(straight_through=True)(*rows).item() == pytest.approx(missing, abs=1e-9)
    original, protected, speakers = rows
    centred = [nn.functional.normalize(side) for side in (original, protected)]
    centred = [side - side.mean(0) for side in centred]
    both_ways += exact(*centred, speakers) + exact(*centred, speakers, sign=-1)
    assert DisclosureLoss(centred=True, straight_through=True)(*rows).item() == pytest.approx(both_ways, abs=1e-9)


@pytest.mark.parametrize("make", [DisclosureLoss, DistinctivenessLoss, PseudonymisationLoss])
def test_straight_through_has_the_gradient_of_the_surrogate(make):
    original, protected, speakers = batch()
    protected.requires_grad_()
    gradients = [
        torch.autograd.grad(make(straight_through=exactly)(original, protected, speakers), protected)[0]
        for exactly in (False, True)
    ]
    assert_close(*gradients, atol=0, rtol=0)


def test_the_loss_is_near_the_exact_value():
    rows = batch()
    for make in (DisclosureLoss, DistinctivenessLoss):
        assert make()(*rows).item() == pytest.approx(make(straight_through=True)(*rows).item(), abs=0.03)


def test_flatness_is_the_correlation_ratio():
    rows = batch(dtype=torch.float64)
    added = (DisclosureLoss(flatness=2.0)(*rows) - DisclosureLoss()(*rows)).item()
    original, protected, speakers = rows
    scores = (nn.functional.normalize(original) @ nn.functional.normalize(protected).T).numpy()
    means = scores.copy()
    for a in range(8):
        for b in range(8):
            cell = np.ix_(speakers.numpy() == a, speakers.numpy() == b)
            means[cell] = scores[cell].mean()
    assert added == pytest.approx(2 * means.var() / scores.var(), abs=1e-9)


def test_pseudonymisation_is_the_weighted_sum():
    rows = batch()
    loss = PseudonymisationLoss(disclosure=2.0, distinctiveness=0.5, centred=False, flatness=0.0)
    assert_close(loss(*rows), 2 * DisclosureLoss()(*rows) + 0.5 * DistinctivenessLoss()(*rows))
    sessions = torch.arange(len(rows[2])) % 2
    expected = 2 * DisclosureLoss()(*rows, sessions) + 0.5 * DistinctivenessLoss()(*rows, sessions)
    assert_close(loss(*rows, sessions), expected)


@each_loss
def test_order_and_names_of_speakers_do_not_show(loss):
    original, protected, speakers = batch(dtype=torch.float64)
    order = torch.randperm(len(speakers), generator=torch.Generator().manual_seed(0))
    moved = loss(original[order], protected[order], 1000 - 7 * speakers[order])
    assert_close(moved, loss(original, protected, speakers), atol=1e-9, rtol=0)


@each_loss
@pytest.mark.parametrize(
    ("original", "protected"),
    [
        (torch.zeros(12, 4), torch.zeros(12, 4)),
        (torch.ones(12, 4), torch.ones(12, 4)),
        (torch.eye(4)[torch.arange(12) % 4], torch.ones(12, 4)),
        (torch.eye(4)[torch.arange(12) % 4], torch.eye(4)[torch.arange(12) % 4]),
        (torch.eye(4)[torch.arange(12) % 4], -torch.eye(4)[torch.arange(12) % 4]),
        (torch.ones(12, 4), torch.eye(4)[torch.arange(12) % 4]),
        (1e-20 * torch.eye(4).repeat(3, 1), 1e18 * torch.eye(4).repeat(3, 1)),
    ],
    ids=["zero", "tied", "protected tied", "separated", "reversed", "original tied", "extreme lengths"],
)
def test_every_stage_of_training_has_a_finite_gradient(loss, original, protected):
    protected = protected.clone().requires_grad_()
    value = loss(original, protected, torch.arange(12) % 4)
    value.backward()
    assert value.isfinite()
    assert protected.grad.isfinite().all()


@undefined
@each_loss
@pytest.mark.parametrize(
    "speakers", [[], [3], [3, 3, 3], [1, 2, 3, 4]], ids=["nobody", "one row", "one speaker", "no target"]
)
@pytest.mark.parametrize("exactly", [False, True])
def test_without_both_kinds_of_trials_it_is_zero_with_a_graph(loss, speakers, exactly):
    original, protected = torch.randn(2, len(speakers), 5).unbind()
    protected.requires_grad_()
    loss.straight_through = exactly
    value = loss(original, protected, torch.tensor(speakers, dtype=torch.long))
    loss.straight_through = False
    value.backward()
    assert value.item() == 0
    assert (protected.grad == 0).all()


@each_loss
def test_nan_is_not_hidden(loss):
    original, protected, speakers = batch()
    protected[3, 2] = torch.nan
    assert loss(original, protected, speakers).isnan()


@each_loss
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_scores_in_float32(loss, dtype):
    original, protected, speakers = batch()
    layer = nn.Linear(12, 12, bias=False)
    with torch.autocast("cpu", dtype=dtype):
        narrow = layer(protected)
        value = loss(original, narrow, speakers)
    assert narrow.dtype == dtype
    assert value.dtype == torch.float32
    assert_close(value, loss(original, narrow.float(), speakers))
    value.backward()
    assert layer.weight.grad.isfinite().all()


@each_loss
def test_nothing_is_read_from_the_device(loss, device):
    original, protected, speakers = (each.to(device) for each in batch())
    protected.requires_grad_()
    sessions = torch.arange(len(speakers), device=device) % 2
    loss = copy.deepcopy(loss).to(device).train()
    for _ in range(4):  # of which the first, second and fourth look for batches that train nothing
        loss(original, protected, speakers, sessions).backward()
    for _ in range(3):
        with Dispatched() as run:
            loss(original, protected, speakers, sessions).backward()
        assert run.synchronisations == 0


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"original": None}, TypeError, "Expected `original` to be a tensor, but got NoneType"),
        ({"protected": torch.ones(48, 12).long()}, TypeError, "Expected `protected` to have a floating dtype"),
        ({"protected": torch.ones(48, 11)}, ValueError, r"Expected `protected` to have shape \(48, 12\)"),
        ({"speakers": torch.ones(48)}, TypeError, "Expected `speakers` to have an integer dtype"),
        ({"speakers": torch.ones(47).long()}, ValueError, r"Expected `speakers` to have shape \(48,\)"),
        ({"sessions": torch.ones(47).long()}, ValueError, r"Expected `sessions` to have shape \(48,\)"),
        ({"sessions": torch.ones(48)}, TypeError, "Expected `sessions` to have an integer dtype"),
    ],
)
def test_wrong_batches_are_refused(change, error, message):
    original, protected, speakers = batch()
    rows = {"original": original, "protected": protected, "speakers": speakers} | change
    for loss in LOSSES:
        with pytest.raises(error, match=message):
            loss(**rows)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"bandwidth": 0}, ValueError, "Expected `bandwidth` to be above 0, but got 0"),
        ({"bandwidth": None}, TypeError, "Expected `bandwidth` to be a number, but got NoneType"),
        ({"flatness": -1}, ValueError, "Expected `flatness` to be at least 0 and finite, but got -1"),
        ({"disclosure": math.inf}, ValueError, "Expected `disclosure` to be at least 0 and finite, but got inf"),
        ({"steadiness": -1}, ValueError, "Expected `steadiness` to be at least 0 and finite, but got -1"),
        ({"attacks": "past"}, TypeError, "Expected `attacks` to be a sequence of names, but got 'past'"),
        ({"attacks": ("future",)}, ValueError, "Expected `attacks` to be one of 'batch', 'past', but got 'future'"),
    ],
)
def test_wrong_settings_are_refused(settings, error, message):
    with pytest.raises(error, match=message):
        PseudonymisationLoss(**settings)


def keyed_batch(seed=0, speakers=6, utterances=8, width=5, dtype=torch.float64):
    """Two sessions per speaker; protected speech is a voice per session, and some of the original."""
    draw = torch.Generator().manual_seed(seed)
    original, _, names = batch(seed, speakers, utterances, width, dtype=dtype)
    sessions = 2 * names + torch.arange(len(names)) % 2
    voices = torch.randn(2 * speakers, width, generator=draw, dtype=torch.float64).to(dtype)
    turn = torch.randn(width, width, generator=torch.Generator().manual_seed(7), dtype=torch.float64).to(dtype)
    return original, voices[sessions] + 0.5 * original @ turn, names, sessions


def primed(loss, batches=12, **settings):
    """The loss after some batches; with what it saw, in order."""
    seen = [keyed_batch(seed, **settings) for seed in range(1, batches + 1)]
    for original, protected, speakers, sessions in seen:
        loss(original, protected.clone().requires_grad_(), speakers, sessions)
    return loss, seen


def ridge(o, p, weights, rows, strength):
    """Both sides of ``rows`` as an attacker sees them who fitted on weighted pairs; and what they inverted."""
    mean_o, mean_p = np.average(o, axis=0, weights=weights), np.average(p, axis=0, weights=weights)
    oo, pp, po = np.zeros((3, o.shape[1], o.shape[1]))
    for weight, a, b in zip(weights, o - mean_o, p - mean_p, strict=True):
        oo, pp, po = oo + weight * np.outer(a, a), pp + weight * np.outer(b, b), po + weight * np.outer(b, a)
    oo, pp, po = oo / weights.sum(), pp / weights.sum(), po / weights.sum()
    lengths, axes = np.linalg.eigh(oo + 1e-2 * np.trace(oo) / len(oo) * np.eye(len(oo)))
    white = axes / np.sqrt(lengths) @ axes.T
    firm = pp + strength * np.trace(pp) / len(pp) * np.eye(len(pp))
    predicts = np.linalg.inv(firm) @ po @ white
    return (
        (rows[0] - mean_o) @ white,
        (rows[1] - mean_p) @ predicts,
        pp + strength * np.trace(pp) / len(pp) * np.eye(len(pp)),
    )


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def two_sided(scores, target):
    return sum(reference.zebra.zebra_disclosure(sign * scores, target)["d_ece"] for sign in (1, -1))


def past_of(seen):
    """All rows seen, with weights that fall by 0.95 from batch to batch."""
    o, p = (np.concatenate([batch[side].numpy() for batch in seen]) for side in (0, 1))
    return o, p, np.repeat(0.95 ** np.arange(len(seen))[::-1], len(seen[0][0]))


def test_an_attack_learnt_from_past_batches_is_that_of_the_definition():
    loss, seen = primed(DisclosureLoss(straight_through=True, attacks=("past",)))
    original, protected, speakers, _ = keyed_batch(0)
    o, p, _ = ridge(*past_of(seen), (original.numpy(), protected.numpy()), 1e-4)
    off, same = ~np.eye(len(o), dtype=bool), speakers.numpy()[:, None] == speakers.numpy()
    attacked = two_sided((unit(o) @ unit(p).T)[off], same[off].astype(int))
    plain = exact(original, protected, speakers) + exact(original, protected, speakers, sign=-1)
    assert attacked > plain + 0.1
    assert loss(original, protected, speakers).item() == pytest.approx(plain + attacked, abs=1e-9)


def test_an_attack_learnt_from_half_of_the_speakers_is_that_of_the_definition():
    original, protected, speakers, _ = keyed_batch(0, speakers=7, dtype=torch.float64)
    o, p, names = original.numpy(), protected.numpy(), speakers.numpy()
    keys = [np.mean(unit(o[names == name]) @ np.cos(np.arange(1, 6))) for name in range(7)]
    first = np.isin(names, np.argsort(keys)[::2])
    scores, target = [], []
    for half in (first, ~first):
        a, b, _ = ridge(o[half], p[half], np.ones(half.sum()), (o[~half], p[~half]), 1e-3)
        off = ~np.eye(len(a), dtype=bool)
        scores.append((unit(a) @ unit(b).T)[off])
        target.append((names[~half][:, None] == names[~half])[off])
    attacked = two_sided(np.concatenate(scores), np.concatenate(target).astype(int))
    plain = exact(original, protected, speakers) + exact(original, protected, speakers, sign=-1)
    loss = DisclosureLoss(straight_through=True, attacks=("batch",))
    assert loss(original, protected, speakers).item() == pytest.approx(plain + attacked, abs=1e-9)


def test_what_shines_through_is_that_of_the_definition():
    (loss, seen), without = primed(DisclosureLoss(steadiness=2.0)), DisclosureLoss()
    original, protected, speakers, sessions = keyed_batch(0)
    p = protected.numpy()
    covariance = ridge(*past_of(seen), (p, p), 1e-4)[2]
    share = 0.0
    for row, session in zip(p, sessions, strict=True):
        apart = row - p[(sessions == session).numpy()].mean(axis=0)
        share += apart @ np.linalg.inv(covariance) @ apart / p.size
    added = loss(original, protected, speakers, sessions) - without(original, protected, speakers, sessions)
    assert added.item() == pytest.approx(2 * math.log1p(share / 1e-3), abs=1e-9)


def test_sessions_choose_the_pairs():
    original, protected, speakers, sessions = keyed_batch(0)
    scores, target = trials(original, protected, speakers, "PP")
    row, column = np.triu_indices(len(speakers), 1)
    one_session = (sessions[row] == sessions[column]).numpy()
    within, across = (target == 0) | one_session, (target == 0) | ~one_session
    told_apart = reference.zebra.zebra_disclosure(scores[within], target[within])["d_ece"]
    loss = DistinctivenessLoss(straight_through=True)
    assert loss(original, protected, speakers, sessions).item() == pytest.approx(FULL_DISCLOSURE - told_apart, abs=1e-9)
    expected = exact(original, protected, speakers) + exact(original, protected, speakers, sign=-1)
    expected += two_sided(scores[across], target[across])
    loss = DisclosureLoss(straight_through=True)
    assert loss(original, protected, speakers, sessions).item() == pytest.approx(expected, abs=1e-9)


def test_numbers_of_sessions_may_be_those_of_other_speakers():
    original, protected, speakers, sessions = keyed_batch(0)
    loss = PseudonymisationLoss()
    assert_close(loss(original, protected, speakers, sessions % 2), loss(original, protected, speakers, sessions))


def test_the_past_is_used_when_it_is_much_more_than_a_batch():
    original, protected, speakers, sessions = keyed_batch(0)
    rows = original, protected, speakers, sessions
    loss, without = DisclosureLoss(attacks=("past",), steadiness=1.0), DisclosureLoss()(*rows)
    primed(loss, 9)
    assert_close(loss(*rows), without)
    primed(loss, 1)
    assert loss(*rows) > without + 0.1


def test_only_batches_trained_on_are_remembered():
    original, protected, speakers, sessions = keyed_batch(0)
    loss, _ = primed(PseudonymisationLoss())
    moments = loss.disclosure.past.moments.clone()
    loss(original, protected, speakers, sessions)
    with torch.no_grad():
        loss(original, protected.clone().requires_grad_(), speakers, sessions)
    loss.eval()(original, protected.clone().requires_grad_(), speakers, sessions)
    assert_close(loss.disclosure.past.moments, moments, atol=0, rtol=0)
    loss.train()(original, protected.clone().requires_grad_(), speakers, sessions)
    assert not torch.equal(loss.disclosure.past.moments, moments)


def test_a_batch_with_nan_shows_once_and_is_forgotten():
    original, protected, speakers, sessions = keyed_batch(0)
    loss, _ = primed(PseudonymisationLoss())
    before = loss(original, protected, speakers, sessions)
    broken = protected.clone()
    broken[3, 2] = torch.nan
    assert loss(original, broken.requires_grad_(), speakers, sessions).isnan()
    assert_close(loss(original, protected, speakers, sessions), before)


def test_the_past_starts_anew_with_another_width_and_is_not_saved():
    loss, _ = primed(PseudonymisationLoss())
    assert loss.state_dict() == {}
    primed(loss, width=7)
    fresh, _ = primed(PseudonymisationLoss(), width=7)
    assert_close(loss.disclosure.past.moments, fresh.disclosure.past.moments, atol=0, rtol=0)


def test_the_past_survives_a_module_in_half_precision():
    original, protected, speakers, sessions = keyed_batch(0, dtype=torch.float32)
    loss, _ = primed(PseudonymisationLoss(), dtype=torch.float32)
    before = loss(original, protected, speakers, sessions)
    value = loss.to(torch.bfloat16)(original, protected.requires_grad_(), speakers, sessions)
    assert_close(value, before, atol=0.2, rtol=0)  # moments rounded to 8 bits
    assert loss.disclosure.past.moments.dtype == torch.float64


@pytest.mark.parametrize("keyed", [False, True])
def test_the_gradient_is_that_of_finite_differences(keyed):
    loss, _ = primed(PseudonymisationLoss(bandwidth=0.1, attacks=("past",)))
    loss.eval()
    original, protected, speakers, sessions = keyed_batch(0)
    protected.requires_grad_()
    rest = (speakers, sessions) if keyed else (speakers,)
    (gradient,) = torch.autograd.grad(loss(original, protected, *rest), protected)
    with torch.no_grad():
        steps = torch.eye(protected.numel(), dtype=torch.float64).view(-1, *protected.shape) * 1e-5
        change = [loss(original, protected + step, *rest) - loss(original, protected - step, *rest) for step in steps]
    expected = torch.stack(change).view_as(gradient) / 2e-5
    # The grid moves with the spread of the scores, without a gradient.
    assert nn.functional.cosine_similarity(gradient.flatten(), expected.flatten(), dim=0) > 0.98
    assert (gradient - expected).norm() < 0.2 * expected.norm()


def test_the_gradient_of_what_shines_through_is_exact():
    loss, _ = primed(DisclosureLoss(steadiness=1.0))
    _, protected, speakers, sessions = keyed_batch(0)
    past = loss.past.covariances(protected)
    protected.requires_grad_()
    assert torch.autograd.gradcheck(lambda rows: shine_through(past, rows, speakers, sessions), protected)


@each_loss
@pytest.mark.parametrize("spread", [0, 1e-7, 1e-5, 1e-3])
@pytest.mark.parametrize("length", [0, 1, 100])
def test_nearly_constant_output_has_a_bounded_gradient(loss, spread, length):
    original, protected, speakers = batch(speakers=16, utterances=8)
    constant = (length * (torch.ones_like(protected) / 12**0.5 + spread * protected)).requires_grad_()
    sessions = torch.arange(len(speakers)) % 2
    (gradient,) = torch.autograd.grad(loss(original, constant, speakers, sessions), constant)
    assert gradient.norm() <= 20 / max(length, 0.01)


@pytest.mark.parametrize("make", [DisclosureLoss, DistinctivenessLoss, PseudonymisationLoss])
def test_batches_that_train_nothing_are_said_once_where_the_loss_is_called(make):
    original, protected, _ = batch()
    loss = make()
    with pytest.warns(UserWarning, match="1 of 1 batches so far had no two utterances of one speaker") as caught:
        loss(original, protected, torch.arange(len(original)))
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss(original, protected, torch.arange(len(original)))
        make()(*batch())


def test_batches_that_turn_out_to_train_nothing_are_said_later():
    original, protected, speakers = batch()
    loss = DisclosureLoss()
    loss(original, protected, speakers)
    loss(original, protected, speakers)
    loss(original, protected, torch.zeros_like(speakers))
    with pytest.warns(UserWarning, match="1 of 4 batches so far"):
        loss(original, protected, speakers)


def test_the_loss_hardly_depends_on_the_size_of_the_batch():
    values = {}
    for rows in (8, 32, 128):
        draws = [torch.randn(2, rows, 64, generator=torch.Generator().manual_seed(seed)) for seed in range(8)]
        values[rows] = torch.stack(
            [DisclosureLoss()(*sides, torch.arange(rows) % (rows // 4)) for sides in draws]
        ).mean()
    assert values[8] < 0.2  # calibration fits noise: 1.4 would be everything
    assert values[32] < 0.02
    assert values[128] < 0.005


class Anonymiser(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.change = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, embeddings):
        return embeddings + self.change(embeddings)


def one_sided(original, protected, speakers):
    """What the two-sided loss is not: D_ECE of OP alone."""
    scores = nn.functional.normalize(original) @ nn.functional.normalize(protected).T
    off = ~torch.eye(len(speakers), dtype=torch.bool)
    target = (speakers[:, None] == speakers)[off].long()
    grid, targets, nontargets = soft_counts(scores[off], target, 0.02)
    return expected_disclosure(Steps(grid[1:], targets, nontargets))


def batches(steps, seed=0, utterances=6):
    """Rows of 16 of the 37 speakers; the bundled voices lie speaker by speaker."""
    draw, rows = torch.Generator().manual_seed(seed), torch.arange(37 * 28).view(37, 28)
    for _ in range(steps):
        some = torch.randperm(37, generator=draw)[:16]
        yield rows[some][:, torch.randperm(28, generator=draw)[:utterances]].flatten()


def train(loss, voices, steps):
    """Protected embeddings from an anonymiser after some steps."""
    torch.manual_seed(0)
    net = Anonymiser()
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-3)
    for rows in batches(steps):
        optimiser.zero_grad()
        loss(voices.original[rows], net(voices.original[rows]), voices.speakers[rows]).backward()
        optimiser.step()
    with torch.no_grad():
        return net(voices.original)


def push(loss, voices, steps):
    """Protected embeddings moved one by one: the most obedient anonymiser there is."""
    protected = voices.original.clone().requires_grad_()
    optimiser = torch.optim.Adam([protected], lr=1e-2)
    for rows in batches(steps):
        optimiser.zero_grad()
        loss(voices.original[rows], protected[rows], voices.speakers[rows]).backward()
        optimiser.step()
    return protected.detach()


def both_directions(voices, protected):
    keep = slice(0, None, 4)  # 7 utterances of each speaker are enough to see
    rows = voices.original[keep], protected[keep], voices.speakers[keep]
    return exact(*rows), exact(*rows, sign=-1), exact(*rows, condition="PP")


@pytest.fixture(scope="module")
def voices():
    voices = demo_voices()
    assert torch.equal(voices.speakers, torch.arange(37).repeat_interleave(28))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tensors this small are calculated before a second thread has woken up
    yield voices
    torch.set_num_threads(threads)


def test_the_one_sided_value_leads_into_its_blind_spot_and_the_loss_does_not(voices):
    before, before_reversed, _ = both_directions(voices, voices.original)
    assert before > 0.69
    assert before_reversed < 0.01
    forwards, backwards, _ = both_directions(voices, push(one_sided, voices, steps=200))
    assert forwards < 0.001
    assert backwards > 0.01
    forwards, backwards, _ = both_directions(voices, push(DisclosureLoss(), voices, steps=100))
    assert forwards < 0.012
    assert backwards < 0.005


def test_pseudonymisation_hides_the_voice_and_keeps_voices_apart(voices):
    forwards, backwards, distinct = both_directions(voices, train(PseudonymisationLoss(), voices, steps=100))
    assert forwards < 0.02
    assert backwards < 0.02
    assert distinct > 0.7


def test_the_metric_agrees_with_the_reference_used_here():
    rows = batch(dtype=torch.float64)
    scores, target = trials(*rows, "OP")
    value = zebra_disclosure(torch.from_numpy(scores), torch.from_numpy(target))["d_ece"].item()
    assert value == pytest.approx(exact(*rows), abs=1e-9)
