"""Attackers against slow ones, and against speakers they have never seen."""

from __future__ import annotations

import copy

import pytest
import torch
from reference import attacks as reference
from torch.nn.functional import normalize
from torch.testing import assert_close

from vpmetrics._trials.moments import Moments, deal, moments_of
from vpmetrics._trials.separation import Maps, separation
from vpmetrics.attacks import (
    STANDARD,
    Procrustes,
    ReducedProcrustes,
    RidgeToOriginal,
    RidgeToProtected,
    Whitened,
)


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
