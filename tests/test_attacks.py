"""Attackers against slow ones, and against speakers they have never seen."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from dispatched import Dispatched
from reference import attacks as reference
from torch.nn.functional import normalize
from torch.testing import assert_close

from vpmetrics._trials.moments import Moments, deal, moments_of, rows_of_groups
from vpmetrics._trials.separation import Maps, disclosed_share, separation, separation_of_rows
from vpmetrics.attacks import (
    STANDARD,
    Attack,
    CanonicalCorrelation,
    Discriminant,
    KernelRidge,
    LinearAttack,
    Plain,
    PLDAPosterior,
    Procrustes,
    ReducedProcrustes,
    RidgeToOriginal,
    RidgeToProtected,
    Whitened,
    WithinClassWhitening,
    ridge_map,
)
from vpmetrics.attacks.base import NOTHING, PAIRS, PROTECTED, map_rows
from vpmetrics.attacks.kernel import LeftOut, fit_kernel
from vpmetrics.attacks.labelled import between_speakers
from vpmetrics.attacks.watching import Watched
from vpmetrics.data import demo_voices
from vpmetrics.functional import zebra_disclosure
from vpmetrics.scoring import PLDA


def voices(speakers=20, each=6, size=8, seed=0, dtype=torch.float64, numbers=None):
    """Pairs of which the protected side is a bent copy of the original one."""
    draw = torch.Generator().manual_seed(seed)
    noise = torch.randn(speakers * each, size, generator=draw, dtype=torch.float64)
    o = torch.randn(speakers, size, generator=draw, dtype=torch.float64).repeat_interleave(each, 0) + 0.4 * noise
    bend = torch.randn(size, size, generator=draw, dtype=torch.float64)
    p = o @ bend + 0.3 * torch.randn(o.shape, generator=draw, dtype=torch.float64) + 2
    names = torch.arange(speakers) if numbers is None else numbers
    return o.to(dtype), p.to(dtype), names.repeat_interleave(each)


def only(attack, setting):
    """An attack without a choice."""
    attack.settings = (setting,)
    return attack


def cosines(attack, original, protected):
    o, p = attack.attack(original, protected)
    return normalize(o) @ normalize(p).T


def test_ridge_is_penalised_least_squares():
    o, p, speakers = voices()
    for attack, source, target in ((RidgeToOriginal(), p, o), (RidgeToProtected(), o, p)):
        only(attack, 0.03).fit(o, p, speakers)
        expected = reference.ridge(source.numpy(), target.numpy(), 0.03)
        matrix = attack.map_p if isinstance(attack, RidgeToOriginal) else attack.map_o
        assert_close(matrix.numpy(), expected, atol=1e-11, rtol=0)


def test_procrustes_is_the_nearest_rotation():
    o, p, speakers = voices()
    attack = Procrustes().fit(o, p, speakers)
    # 1e-6 of the largest singular value softens the smallest by about 1e-10.
    assert_close(attack.map_p.numpy(), reference.procrustes(p.numpy(), o.numpy()), atol=1e-8, rtol=0)
    reduced = only(ReducedProcrustes(), 3).fit(o, p, speakers)
    few_o, few_p = (x @ reference.principal(x, 3) for x in (o.numpy(), p.numpy()))
    turned = (few_p - few_p.mean(0)) @ reference.procrustes(few_p, few_o)
    expected = (few_o - few_o.mean(0)) @ turned.T
    left, right = reduced.attack(o, p)
    assert_close((left @ right.T).numpy(), expected, atol=1e-8, rtol=0)


def test_whitening_is_the_inverse_root_of_the_covariance():
    o, p, speakers = voices()
    attack = only(Whitened(), 1e-3).fit(o, p, speakers)
    assert_close(attack.map_o.numpy(), reference.whiten(o.numpy(), 1e-3), atol=1e-9, rtol=0)
    assert_close(attack.map_p.numpy(), reference.whiten(p.numpy(), 1e-3), atol=1e-9, rtol=0)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_speakers_may_be_numbered_by_any_integers(dtype):
    o, p, speakers = voices()
    attack, expected = (RidgeToOriginal().fit(o, p, names) for names in (speakers.to(dtype), speakers))
    assert torch.equal(attack.map_p, expected.map_p)


def test_canonical_correlation_is_the_generalised_eigenproblem():
    o, p, speakers = voices()
    attack = only(CanonicalCorrelation(), 1e-2).fit(o, p, speakers)
    left, right = reference.canonical(o.numpy(), p.numpy(), 1e-2)
    found = attack.map_p @ attack.map_o.mT, attack.map_o @ attack.map_o.mT, attack.map_p @ attack.map_p.mT
    for product, expected in zip(found, (right @ left.T, left @ left.T, right @ right.T), strict=True):
        assert_close(product.numpy(), expected, atol=1e-9, rtol=1e-9)  # signs of directions are arbitrary


def test_labelled_attacks_follow_from_scatter_within_and_between_speakers():
    o, p, speakers = voices()
    within, _ = reference.within_and_between(p.numpy(), speakers.numpy())
    white = only(WithinClassWhitening(), 1e-2).fit(o, p, speakers)
    ridged = within + 1e-2 * np.trace(within) / 8 * np.eye(8)
    assert_close((white.map_p @ white.map_p.mT).numpy(), np.linalg.inv(ridged), atol=1e-9, rtol=1e-9)
    few = only(Discriminant(), (1e-2, 3)).fit(o, p, speakers)
    expected = reference.discriminant(p.numpy(), speakers.numpy(), 1e-2, 3)
    assert_close((few.map_p @ few.map_p.mT).numpy(), expected @ expected.T, atol=1e-9, rtol=1e-9)
    assert few.map_o is few.map_p or torch.equal(few.map_o, few.map_p)


def test_plda_weighs_as_its_likelihood_ratio_does():
    o, p, speakers = voices(speakers=40)
    model, attack = PLDA().fit(p, speakers), only(PLDAPosterior(), 1e-6).fit(o, p, speakers)
    said = model.basis @ torch.diag(model.between / (1 + 2 * model.between)) @ model.basis.mT
    assert_close(attack.map_p @ attack.map_p.mT, said, atol=1e-9, rtol=1e-9)
    # Uneven speakers: the expected scatter between their means is that of the model, whatever their numbers.
    draw = torch.Generator().manual_seed(0)
    counts = torch.randint(1, 9, (4000,), generator=draw)
    names = torch.arange(4000).repeat_interleave(counts)
    rows = torch.randn(4000, 2, generator=draw, dtype=torch.float64)[names] * torch.tensor([2.0, 0.5])
    rows = rows + torch.randn(len(names), 2, generator=draw, dtype=torch.float64)
    found = between_speakers(moments_of(rows, rows, names).together)[0]
    assert_close(found, torch.tensor([[4.0, 0.0], [0.0, 0.25]], dtype=torch.float64), atol=0.25, rtol=0)


def test_kernel_ridge_is_solved_as_written():
    o, p, speakers = voices(speakers=12)
    attack = only(KernelRidge(), 1e-3).fit(o[:60], p[:60], speakers[:60])
    expected = reference.kernel_ridge(p[:60].numpy(), o[:60].numpy(), p[60:].numpy(), 1e-3, width=4.0)
    assert_close(attack.attack(None, p[60:])[1].numpy(), expected, atol=1e-9, rtol=0)


def test_kernel_ridge_leaves_out_speakers_as_if_it_had_never_seen_them():
    o, p, speakers = (side[:60] for side in voices())
    o, p = o - o.mean(0), p - p.mean(0)
    groups, count = deal(p, speakers)
    kernel = torch.exp(-(p[:, None] - p).square().sum(2) / 50)
    left_out = [LeftOut(rows, speakers[rows]) for rows in rows_of_groups(groups, count)]
    _, found = fit_kernel(kernel, 1e-2, o, left_out)
    expected = 0
    for group in range(count):
        own, ridged = (groups == group).numpy(), (kernel + 1e-2 * torch.eye(60).double()).numpy()
        predicted = ridged[own][:, ~own] @ np.linalg.solve(ridged[~own][:, ~own], o.numpy()[~own])
        apart = reference.separation(o.numpy()[own], predicted, speakers.numpy()[own])
        expected += np.sign(apart) * (1 - np.exp(-(apart**2) / 6.5))
    assert found.item() == pytest.approx(expected, abs=1e-9)


def test_separation_is_counted_pair_by_pair():
    o, p, speakers = voices(size=3)
    groups, count = deal(p, speakers)
    moments = moments_of(o, p, speakers, groups, count)
    draw = torch.Generator().manual_seed(3)
    a, b = torch.randn(2, count, 3, 2, generator=draw, dtype=torch.float64)
    mean_o, mean_p = torch.randn(2, count, 3, generator=draw, dtype=torch.float64)
    found = separation(moments, Maps(mean_o, a, mean_p, b))
    for group in range(count):
        chosen = groups == group
        left, right = (o[chosen] - mean_o[group]) @ a[group], (p[chosen] - mean_p[group]) @ b[group]
        expected = reference.separation(left.numpy(), right.numpy(), speakers[chosen].numpy())
        assert found[group].item() == pytest.approx(expected, abs=1e-10)
        assert separation_of_rows(left, right, speakers[chosen]).item() == pytest.approx(expected, abs=1e-10)


def test_separation_is_unknown_without_a_second_speaker_or_utterance():
    rows = torch.eye(4, dtype=torch.float64)
    for speakers in (torch.zeros(4).long(), torch.arange(4)):
        assert separation(moments_of(rows, rows, speakers), Maps()).isnan().all()
        assert separation_of_rows(rows, rows, speakers).isnan()


def test_moments_of_groups_are_those_of_their_rows():
    o, p, speakers = voices(speakers=7, size=3)
    groups, count = deal(o, speakers)
    moments = moments_of(o, p, speakers, groups, count)
    for group in range(count):
        for covariances, chosen in ((moments.each, groups == group), (moments.others, groups != group)):
            a, b = o[chosen].numpy(), p[chosen].numpy()
            assert_close(covariances.mean_o[group].numpy(), a.mean(0))
            assert_close(covariances.oo[group].numpy(), reference.covariance(a, a))
            assert_close(covariances.pp[group].numpy(), reference.covariance(b, b))
            assert_close(covariances.po[group].numpy(), reference.covariance(b, a))
            own = [b[speakers[chosen].numpy() == name] for name in speakers[chosen].unique().numpy()]
            scatter = sum(len(rows) * reference.covariance(rows, rows) for rows in own) / len(a)
            assert_close(covariances.within_pp[group].numpy(), scatter)


def test_moments_of_parts_add_up_whatever_the_offset():
    o, p, speakers = voices()
    o, p = o + 1e6, p - 1e6
    whole, cut = moments_of(o, p, speakers), torch.randperm(len(o), generator=torch.Generator().manual_seed(1))
    parts = [moments_of(o[rows], p[rows], speakers[rows]) for rows in cut.split([1, 50, 69])]
    together = parts[0] + parts[1] + parts[2]
    assert_close(together.tensors(), whole.tensors(), atol=1e-8, rtol=0)  # 1e6 has ten digits after the point
    assert_close(Moments(*whole.tensors()).together.po, (parts[2] + (parts[0] + parts[1])).together.po)


@pytest.mark.parametrize("attack", STANDARD, ids=lambda attack: attack.name)
class TestEveryAttack:
    def test_order_and_numbers_of_speakers_change_nothing(self, attack):
        o, p, speakers = voices()
        expected = cosines(copy.deepcopy(attack).fit(o, p, speakers), o, p)
        order = torch.randperm(len(o), generator=torch.Generator().manual_seed(1))
        renamed = (7 * speakers + 3) % 20 - 5
        found = cosines(copy.deepcopy(attack).fit(o[order], p[order], renamed[order]), o, p)
        assert_close(found, expected, atol=1e-9, rtol=0)

    def test_float32_is_as_good(self, attack):
        o, p, speakers = voices()
        expected = cosines(copy.deepcopy(attack).fit(o, p, speakers), o, p)
        o, p = o.float(), p.float()
        found = cosines(copy.deepcopy(attack).fit(o, p, speakers), o, p)
        assert found.dtype == torch.float32
        assert_close(found.double(), expected, atol=1e-3, rtol=0)

    @pytest.mark.parametrize(("speakers", "each", "size"), [(3, 2, 16), (2, 1, 4), (1, 3, 4), (6, 3, 40), (1, 1, 2)])
    def test_tiny_and_thin_sets_give_finite_scores(self, attack, speakers, each, size):
        o, p, names = voices(speakers, each, size)
        o[0] = 0
        for left, right in ((o, p), (torch.ones_like(o), torch.ones_like(p)), (o, torch.zeros_like(p))):
            fitted = copy.deepcopy(attack).fit(left, right, names)
            assert cosines(fitted, o, p).isfinite().all()

    def test_missing_sides_stay_missing_and_pickling_keeps_the_rest(self, attack):
        o, p, speakers = voices()
        fitted = copy.deepcopy(attack).fit(o, p, speakers)
        assert fitted.attack(None, p)[0] is None
        assert fitted.attack(o, None)[1] is None
        loaded = copy.deepcopy(attack)
        loaded.load_state_dict(fitted.state_dict())
        assert_close(cosines(loaded, o, p), cosines(fitted, o, p), atol=0, rtol=0)
        with pytest.raises(RuntimeError, match="fitted before it attacks"):
            copy.deepcopy(attack).attack(o, p)

    def test_gradients_reach_the_embeddings_that_are_attacked(self, attack):
        o, p, speakers = voices(speakers=6, each=2, size=3)
        fitted = copy.deepcopy(attack).fit(o, p, speakers)
        assert torch.autograd.gradcheck(
            lambda left, right: fitted.attack(left, right), (o[:3].requires_grad_(), p[:3].requires_grad_())
        )

    def test_what_is_missing_is_named(self, attack):
        o, p, speakers = voices(speakers=4, each=2, size=3)
        with pytest.raises(TypeError, match="`protected` to be a tensor, but got NoneType"):
            copy.deepcopy(attack).fit(o, None, speakers)
        with pytest.raises(ValueError, match=r"`speakers` to have shape \(8,\)"):
            copy.deepcopy(attack).fit(o, p, speakers[:3])
        with pytest.raises(ValueError, match="at least one row"):
            copy.deepcopy(attack).fit(o[:0], p[:0], speakers[:0])
        fitted = copy.deepcopy(attack).fit(o, p, speakers)
        with pytest.raises(TypeError, match="`protected` to be a tensor, but got list"):
            fitted.attack(o, [1.0])
        if attack.needs != NOTHING:
            with pytest.raises(ValueError, match="`original` to be 3 wide, as what was fitted on, but got 2"):
                fitted.attack(o[:, :2], p)
        if attack.needs == PAIRS:
            with pytest.raises(TypeError, match="`original` to be a tensor, but got NoneType"):
                copy.deepcopy(attack).fit(None, p, speakers)
        else:
            assert cosines(copy.deepcopy(attack).fit(None, p, speakers), o, p).isfinite().all()

    def test_nan_that_comes_in_does_not_leave_as_a_number(self, attack):
        o, p, speakers = voices(speakers=6, each=3, size=4)
        p[2, 1] = torch.nan
        if attack.needs != NOTHING:
            assert cosines(copy.deepcopy(attack).fit(o, p, speakers), o[:2], p[:2]).isnan().all()


LINEAR = [attack for attack in STANDARD if isinstance(attack, LinearAttack)]


@pytest.mark.parametrize("attack", LINEAR, ids=lambda attack: attack.name)
class TestEveryLinearAttack:
    def test_observed_in_pieces_is_observed_at_once_and_is_fitted_to_all(self, attack):
        o, p, speakers = voices(speakers=30)
        at_once, pieces = copy.deepcopy(attack), copy.deepcopy(attack)
        at_once.observe(o, p, speakers)
        for rows in torch.randperm(len(o), generator=torch.Generator().manual_seed(1)).split(17):
            pieces.observe(o[rows], p[rows], speakers[rows], sessions=speakers[rows])
        expected = cosines(at_once.fit(), o, p)
        assert_close(cosines(pieces.fit(), o, p), expected, atol=1e-9, rtol=0)
        resumed = copy.deepcopy(attack)
        resumed.load_state_dict(pieces.state_dict())
        resumed = pickle.loads(pickle.dumps(resumed))
        assert_close(cosines(resumed.fit(), o, p), expected, atol=1e-9, rtol=0)
        # Fitted to the rows themselves, only the groups that choose the setting differ.
        setting = attack.settings[len(attack.settings) // 2]
        assert_close(
            cosines(only(pieces, setting).fit(), o, p),
            cosines(only(copy.deepcopy(attack), setting).fit(o, p, speakers), o, p),
            atol=1e-9,
            rtol=0,
        )

    def test_groups_are_attacked_by_what_was_fitted_without_them(self, attack):
        o, p, speakers = voices()
        groups, count = deal(p, speakers)
        setting = attack.settings[-1]
        together = only(copy.deepcopy(attack), setting).fit_groups(moments_of(o, p, speakers, groups, count))
        for group in range(count):
            chosen = groups != group
            alone = only(copy.deepcopy(attack), setting).fit(o[chosen], p[chosen], speakers[chosen])
            maps = together.of(group)
            left, right = map_rows(o, maps.mean_o, maps.map_o), map_rows(p, maps.mean_p, maps.map_p)
            assert_close(normalize(left) @ normalize(right).T, cosines(alone, o, p), atol=1e-9, rtol=0)


def test_a_group_has_no_say_in_its_own_setting(monkeypatch):
    o, p, speakers = voices()
    groups, count = deal(p, speakers)
    moments = moments_of(o, p, speakers, groups, count)
    attack = RidgeToOriginal()
    found = torch.rand(len(attack.settings), count, generator=torch.Generator().manual_seed(0))
    chosen = []
    for best in (0, 6):
        found[:, 2], found[best, 2] = 0, 10
        monkeypatch.setattr(attack, "_separations", lambda *_: found)
        chosen.append(attack.fit_groups(moments).map_p)
    same = [torch.equal(first, second) for first, second in zip(*chosen, strict=True)]
    assert same == [False, False, True, False, False]


def test_of_settings_as_good_the_last_is_taken():
    attack = RidgeToOriginal()
    found = torch.tensor(
        [[0.5, 0.0, -1.0, 0.2], [0.999, 0.0, -0.1, 0.3], [1.0, 0.0, -0.1009, 0.1], [0.995, 0.0, -2, 0]]
    )
    assert attack._best(found) == [3, 3, 2, 1]


@pytest.mark.parametrize("condition", ["OP", "PP"])
def test_settings_are_judged_by_the_pairs_of_the_condition(condition):
    o, p, speakers = voices()
    groups, count = deal(p, speakers)
    moments = moments_of(o, p, speakers, groups, count)
    attack = only(Whitened(), 1e-2)
    attack.settings *= 2  # one alone would not be judged
    maps = attack.fit_groups(moments, condition)
    for group in range(count):
        chosen, of = groups == group, maps.of(group)
        right = map_rows(p[chosen], of.mean_p, of.map_p)
        left = map_rows(o[chosen], of.mean_o, of.map_o) if condition == "OP" else right
        expected = reference.separation(left.numpy(), right.numpy(), speakers[chosen].numpy())
        expected = np.sign(expected) * (1 - np.exp(-(expected**2) / 6.5))
        assert attack._separations(moments, attack._of_others(moments), condition)[1, group].item() == pytest.approx(
            expected, abs=1e-9
        )


@pytest.mark.parametrize(("speakers", "groups"), [(1, 1), (2, 2), (3, 2), (5, 2), (6, 3), (40, 5)])
def test_of_few_speakers_somebody_is_left_to_learn_from(speakers, groups):
    """Were all of them left out together, rounding would choose between settings."""
    names = torch.arange(2 * speakers) % speakers
    group, count = deal(torch.randn(2 * speakers, 4, generator=torch.Generator().manual_seed(0)), names)
    assert count == groups == len(group.unique())
    assert all(len(names[group == one].unique()) >= speakers // groups for one in range(groups))


@pytest.mark.parametrize("attack", [RidgeToOriginal(), Plain()])
def test_maps_for_several_conditions_are_those_for_each(attack):
    o, p, speakers = voices()
    groups, count = deal(p, speakers)
    moments = moments_of(o, p, speakers, groups, count)
    both = attack.fit_groups_for(moments, ("OP", "PP"))
    alone = [attack.fit_groups(moments, condition) for condition in ("OP", "PP")]
    assert_close([tuple(maps) for maps in both], [tuple(maps) for maps in alone], rtol=0, atol=0)


@pytest.mark.parametrize("apart", [0.25, 0.5, 1.0, 2.0, 3.0, 5.0])
def test_the_share_disclosed_is_about_that_of_gaussian_scores(apart):
    scores = torch.linspace(-12, 17, 100_001, dtype=torch.float64)
    density = [torch.exp(-0.5 * (scores - mean) ** 2) * 29e-5 / (2 * torch.pi) ** 0.5 for mean in (apart, 0)]
    llr = apart * scores - apart**2 / 2
    disclosed = (density[0] * zebra(llr)).sum() + (density[1] * zebra(-llr)).sum()
    assert disclosed_share(torch.tensor(apart)).item() == pytest.approx(disclosed.item(), abs=0.012)


def zebra(llr):
    """Z of ZEBRA, away from 0, where it cancels."""
    return torch.where(llr.abs() < 1e-3, llr / 3, 0.5 + (llr - llr.expm1()) / llr.expm1() ** 2)


def attacked_in_folds(attack, original, protected, speakers):
    """What every fold of speakers looks like to who was fitted on the others: both sides and speakers."""
    groups, count = deal(protected, speakers)
    maps = None
    if isinstance(attack, LinearAttack):
        maps = attack.fit_groups(moments_of(original, protected, speakers, groups, count))
    for group in range(count):
        own = groups == group
        if maps is not None:
            of = maps.of(group)
            sides = map_rows(original[own], of.mean_o, of.map_o), map_rows(protected[own], of.mean_p, of.map_p)
        else:
            fitted = copy.deepcopy(attack).fit(original[~own], protected[~own], speakers[~own])
            sides = fitted.attack(original[own], protected[own])
        yield *sides, speakers[own]


def two_sided_disclosure(attack, *sides):
    """D_ECE of OP in bits, in the direction that shows more, of speakers never fitted on."""
    scores, target = [], []
    for original, protected, speakers in attacked_in_folds(attack, *sides):
        found = normalize(original) @ normalize(protected).T
        trials = ~torch.eye(len(found), dtype=torch.bool)
        scores.append((found / found.square().mean().sqrt())[trials])  # so that folds have one scale
        target.append((speakers[:, None] == speakers)[trials])
    disclosed = zebra_disclosure(torch.cat(scores), torch.cat(target).long())
    return max(disclosed["d_ece"].item(), disclosed["d_ece_reversed"].item())


@pytest.mark.parametrize(
    ("system", "cosine", "ridge", "canonical"),
    [("B2", 0.404, 0.595, 0.639), ("B2r0", 0.119, 0.236, 0.255), ("B2u", 0.169, 0.383, 0.397)],
)
def test_bundled_voices_disclose_more_to_who_learns(system, cosine, ridge, canonical):
    demo = demo_voices()
    sides = demo.original, demo.protected[system], demo.speakers
    found = [two_sided_disclosure(attack, *sides) for attack in (Plain(), RidgeToOriginal(), CanonicalCorrelation())]
    assert found == pytest.approx([cosine, ridge, canonical], abs=0.01)


@pytest.mark.parametrize("speakers", [12, 40])
def test_a_turned_and_shifted_copy_hides_nothing(speakers):
    o, _, names = voices(speakers, each=20, size=32)
    draw = torch.Generator().manual_seed(5)
    p = o @ torch.linalg.qr(torch.randn(32, 32, generator=draw, dtype=torch.float64))[0] + 3
    known = two_sided_disclosure(Plain(), o, o, names)
    assert two_sided_disclosure(Plain(), o, p, names) < 0.1 * known
    for attack in (RidgeToOriginal(), RidgeToProtected(), Procrustes(), ReducedProcrustes(), CanonicalCorrelation()):
        assert two_sided_disclosure(attack, o, p, names) > 0.9 * known, attack.name


@pytest.mark.parametrize("speakers", [12, 40])
def test_noise_discloses_nothing_to_anybody(speakers):
    o, _, names = voices(speakers, each=20, size=32)
    p = torch.randn(o.shape, generator=torch.Generator().manual_seed(100), dtype=torch.float64)
    for attack in STANDARD:
        assert two_sided_disclosure(attack, o, p, names) < 0.02, attack.name


@pytest.mark.parametrize("system", ["B2", "B2r0", "B2u"])
def test_the_setting_chosen_is_about_the_best_in_hindsight(system):
    demo = demo_voices()
    sides = demo.original, demo.protected[system], demo.speakers
    for attack in (RidgeToOriginal(), CanonicalCorrelation()):
        attack.settings = attack.settings[::2]
        every = [two_sided_disclosure(only(copy.deepcopy(attack), s), *sides) for s in attack.settings]
        assert two_sided_disclosure(attack, *sides) > max(every) - 0.02, attack.name
        assert max(every) - min(every) > 0.02  # or any choice would do


def test_watching_waits_for_no_device():
    o, p, speakers = voices()
    attack = RidgeToOriginal()
    with Dispatched() as seen:
        attack.observe(o, p, speakers)
        attack.observe(o, p, speakers)
    assert seen.synchronisations == 0
    with Dispatched() as seen:
        attack.fit()
    assert seen.synchronisations > 0


def test_watching_takes_the_memory_of_the_speakers():
    o, p, speakers = voices()
    attack = RidgeToOriginal()
    sizes = []
    for _ in range(2):
        for _ in range(40):
            attack.observe(o, p, speakers)
        sizes.append(sum(value.numel() for value in attack.state_dict().values() if isinstance(value, torch.Tensor)))
    assert sizes[0] == sizes[1] == 20 * (3 + 2 * 8) + 5 * 3 * 8 * 8
    assert len(attack.watched.moments.names) == 20
    assert attack.watched.moments.counts.sum() == 80 * len(o)
    attack.watched.clear()
    with pytest.raises(RuntimeError, match="`observe` before `fit`"):
        attack.fit()


def test_what_other_processes_watched_is_added():
    o, p, speakers = voices()
    parts = Watched(), Watched()
    for part, rows in zip(parts, (slice(0, 50), slice(50, None)), strict=True):
        part.add(o[rows], p[rows], speakers[rows])
    sent = [[tensor.clone() for tensor in part.moments.tensors()] for part in parts]
    whole = Watched()
    whole.add(o, p, speakers)
    found = Moments(*sent[0]) + Moments(*sent[1])
    assert_close(found.tensors(), whole.moments.tensors(), atol=1e-10, rtol=0)


def test_speakers_with_round_numbers_are_dealt_evenly():
    for step in (1, 5, 10, 64, 1000):
        watched = Watched()
        watched.add(torch.ones(400, 2), torch.ones(400, 2), step * torch.arange(400))
        assert torch.bincount(watched.moments.groups, minlength=5).min() > 40


def test_an_attacker_of_anybodys_own_takes_two_methods():
    class Scaled(Attack):
        name, needs = "scaled", PROTECTED

        def fit(self, original, protected, speakers):  # noqa: ARG002
            self.spread = protected.std(0)
            return self

        def attack(self, original, protected):
            return original, None if protected is None else protected / self.spread

    class Turned(LinearAttack):
        name, needs, settings = "turned", PAIRS, (1.0, -1.0)

        def maps(self, moments, setting):
            return Maps(map_p=setting * torch.eye(moments.po.shape[1]).to(moments.po).expand_as(moments.po))

    o, p, speakers = voices()
    assert cosines(Scaled().fit(o, p, speakers), o, p).isfinite().all()
    assert_close(Turned().fit(o, -o, speakers).map_p, -torch.eye(8, dtype=torch.float64))


def test_a_ridge_map_carries_a_gradient():
    o, p, speakers = voices(speakers=5, each=3, size=3)

    def predicted(original, protected):
        moments = moments_of(original, protected, speakers).together
        return (protected - moments.mean_p) @ ridge_map(moments.pp, moments.po, 1e-2)[0]

    attack = only(RidgeToOriginal(), 1e-2).fit(o, p, speakers)
    assert_close(predicted(o, p), attack.attack(o, p)[1], atol=1e-10, rtol=0)
    assert torch.autograd.gradcheck(predicted, (o.requires_grad_(), p.requires_grad_()))


def test_running_moments_forget():
    o, p, speakers = voices()
    first, second = moments_of(o[:60], p[:60], speakers[:60]), moments_of(o[60:], p[60:], speakers[60:])
    twice = moments_of(*(torch.cat([x[:60], x[60:], x[60:]]) for x in (o, p, speakers)))
    found = (first.scaled(0.5) + second).together
    assert_close(found.po, twice.together.po)
    assert_close(found.mean_o, twice.together.mean_o)
