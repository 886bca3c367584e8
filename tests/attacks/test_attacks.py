"""Every attack against a slow one, and on sets that are small, thin, reordered or of few digits."""

import copy
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from reference import attacks as reference
from torch.testing import assert_close

from vpmetrics.attacks import (
    PLDA,
    STANDARD,
    AbsoluteCosine,
    Attack,
    CanonicalCorrelation,
    Centred,
    EvenKernelRidge,
    KernelRidge,
    LikelihoodRatio,
    LinearAttack,
    Maps,
    OuterProducts,
    Plain,
    Procrustes,
    RidgeToOriginal,
    RidgeToProtected,
    SquaresToProtected,
    Whitening,
    WithinClassScaling,
    WithinClassWhitening,
)
from vpmetrics.attacks.base import NOTHING, PAIRS, score_mapped_rows, separation_of_scores
from vpmetrics.attacks.moments import (
    CENTRED,
    STANDARDISED,
    TrainingSets,
    choose_views_by_spread,
    unit_rows,
)

EVERY = STANDARD


def voices(speakers=20, each=6, size=8):
    """Pairs of which the protected side is a bent copy of the original one; float64."""
    normal = partial(torch.randn, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    noise = normal(speakers * each, size)
    o = normal(speakers, size).repeat_interleave(each, 0) + 0.4 * noise
    p = o @ normal(size, size) + 0.3 * normal(o.shape) + 2
    return o, p, torch.arange(speakers).repeat_interleave(each)


def fitted(attack, *rows, setting=None):
    """A fitted copy of the attack, with one setting where one is given."""
    attack = copy.deepcopy(attack)
    if setting is not None:
        attack.settings = (setting,)
    return attack.fit(*rows)


def scores(attack, original, protected):
    return score_mapped_rows(attack, *attack.attack(original, protected))


# Attacks are fitted on the first 90 rows, normalised as they see them, and tried on the others;
# centred in CO and CP.
ROWS = voices()[:2]
SPEAKERS = voices()[2][:90]
KNOWN_O, KNOWN_P = (reference.normalise(rows[:90].numpy(), rows[:90].numpy()) for rows in ROWS)
TEST_O, TEST_P = (reference.normalise(rows[90:].numpy(), rows[:90].numpy()) for rows in ROWS)
CO = TEST_O - KNOWN_O.mean(0)
CP = TEST_P - KNOWN_P.mean(0)


def whitened(is_diagonal):
    within = reference.with_ridge(reference.within_and_between(KNOWN_P, SPEAKERS.numpy())[0], 1e-2)
    root = np.linalg.cholesky(np.linalg.inv(np.diag(np.diag(within)) if is_diagonal else within))
    return CO @ root, CP @ root


def whitened_by_all():
    root = np.linalg.cholesky(
        np.linalg.inv(reference.with_ridge(reference.covariance(KNOWN_P, KNOWN_P), 1e-2))
    )
    return CO @ root, CP @ root


def weighed_by_plda():
    axes, lengths, _ = np.linalg.svd(reference.plda(KNOWN_P, SPEAKERS.numpy(), 1e-2))
    return CO @ axes * np.sqrt(lengths), CP @ axes * np.sqrt(lengths)


def on_products(known, tests, target, ridge):
    """Ridge regression of the target on the outer products of rows, in its dual form."""
    products, tests = (reference.outer_products(rows, known) for rows in (known, tests))
    size = (products**2).sum(1).mean()
    return (
        tests
        @ products.T
        @ np.linalg.solve(products @ products.T + ridge * size * np.eye(90), target)
    )


SQUARES = TEST_O**2 - (KNOWN_O**2).mean(0)
CANONICAL = reference.canonical(KNOWN_O, KNOWN_P, 1e-2, 0.3)
PRODUCTS, KNOWN_PRODUCTS = (reference.outer_products(rows, KNOWN_O) for rows in (TEST_O, KNOWN_O))
GAUSSIAN = lambda x, y: np.exp(-((x - y) ** 2).sum() / (8 * KNOWN_P.var(0).sum()))  # noqa: E731
# The rows that each attack compares by cosine. Directions without variance are left out smoothly,
# by v / (v + e) with e = 1e-10 of the mean variance, which moves cosines by some 1e-9.
FORMULAS = [
    (Plain(), None, lambda: [rows[90:].numpy() for rows in ROWS], 1e-9),
    (Centred(), None, lambda: (CO, CP), 1e-9),
    (RidgeToOriginal(), 0.03, lambda: (CO, CP @ reference.ridge(KNOWN_P, KNOWN_O, 0.03)), 1e-8),
    (RidgeToProtected(), 0.03, lambda: (CO @ reference.ridge(KNOWN_O, KNOWN_P, 0.03), CP), 1e-8),
    (
        SquaresToProtected(),
        0.1,
        lambda: (SQUARES @ reference.ridge(KNOWN_O**2, KNOWN_P, 0.1), CP),
        1e-8,
    ),
    # Newton-Schulz steps end within 1e-4 of a rotation.
    (Procrustes(), None, lambda: (CO, CP @ reference.procrustes(KNOWN_P, KNOWN_O)), 1e-3),
    (CanonicalCorrelation(), (1e-2, 0.3), lambda: (CO @ CANONICAL[0], CP @ CANONICAL[1]), 1e-8),
    (Whitening(), 1e-2, whitened_by_all, 1e-8),
    (WithinClassWhitening(), 1e-2, partial(whitened, is_diagonal=False), 1e-8),
    (WithinClassScaling(), 1e-2, partial(whitened, is_diagonal=True), 1e-8),
    (PLDA(), 1e-2, weighed_by_plda, 1e-6),
    (
        KernelRidge(),
        1e-2,
        lambda: (CO, reference.kernel_ridge(KNOWN_P, KNOWN_O, TEST_P, 1e-2, GAUSSIAN)),
        1e-9,
    ),
    (
        EvenKernelRidge(),
        0.1,
        lambda: (on_products(KNOWN_O, TEST_O, KNOWN_P - KNOWN_P.mean(0), 0.1), CP),
        1e-9,
    ),
    # The 36 products of eight dimensions are spanned by ninety rows, so that nothing is projected
    # away.
    (
        OuterProducts(),
        1e-2,
        lambda: (PRODUCTS, on_products(KNOWN_P, TEST_P, KNOWN_PRODUCTS, 1e-2)),
        1e-4,
    ),
]


class TestFormulas:
    @pytest.mark.parametrize(("attack", "setting", "rows", "atol"), FORMULAS)
    def test_attacks_compare_the_rows_of_the_definition_by_cosine(
        self, attack, setting, rows, atol
    ):
        attack = fitted(attack, *(side[:90] for side in ROWS), SPEAKERS, setting=setting)
        found = scores(attack, *(side[90:] for side in ROWS))
        assert_close(found.numpy(), reference.cosines(*rows()), atol=atol, rtol=0)

    def test_absolute_cosine(self):
        attack = fitted(AbsoluteCosine(), *voices())
        assert_close(
            scores(attack, *ROWS).numpy(), abs(reference.cosines(*(rows.numpy() for rows in ROWS)))
        )

    def test_likelihood_ratio_is_that_of_gaussian_densities(self):
        attack = fitted(
            LikelihoodRatio(), *(side[:90] for side in ROWS), SPEAKERS, setting=(1e-2, 0.0)
        )
        found = scores(attack, *(side[90:] for side in ROWS)).numpy()
        expected = reference.likelihood_ratios(TEST_O, TEST_P, KNOWN_O, KNOWN_P, 1e-2)
        assert_close(found - found[0, 0], expected - expected[0, 0], atol=1e-7, rtol=1e-7)

    def test_separation_matches_a_loop_over_pairs(self):
        o, p, speakers = (x[:30] for x in voices(size=3))
        same = speakers[:, None] == speakers
        other = ~torch.eye(30, dtype=torch.bool)
        gap = reference.separation(o.numpy(), p.numpy(), speakers.numpy())
        found = separation_of_scores(o @ p.T, same & other, ~same)
        assert found.item() == pytest.approx(
            np.sign(gap) * (1 - np.exp(-(gap**2) / 6.5)), abs=1e-12
        )
        assert separation_of_scores(o @ p.T, same & ~same, ~same) == 0


class TestNormalisation:
    def test_attacks_are_invariant_to_embedding_norm(self):
        o, p, speakers = voices()
        # Powers of two, which round nothing: the choice of folds takes rows by all their digits.
        gain = torch.linspace(-10, 10, len(p), dtype=torch.float64).round().exp2()[:, None]
        for attack in EVERY:
            plain, loud = (
                scores(fitted(attack, o, rows, speakers), o, rows) for rows in (p, p * gain)
            )
            assert_close(loud, plain, atol=1e-9, rtol=0)

    def test_dimensions_are_scaled_only_where_few_hold_most_of_the_variance(self):
        o, p, _ = voices(size=30)
        assert choose_views_by_spread(unit_rows(o), unit_rows(p - 2)) == (CENTRED,)
        scaled = unit_rows(o * torch.logspace(-3, 3, 30, dtype=torch.float64))
        assert choose_views_by_spread(scaled, unit_rows(p - 2)) == (CENTRED, STANDARDISED)
        found = TrainingSets(None, scaled, torch.arange(120), views=(STANDARDISED,))
        found = found.view_rows("protected", STANDARDISED, slice(None))[0]
        expected = reference.normalise(scaled.numpy(), scaled.numpy(), is_scaled=True)
        assert_close(found.numpy(), expected, atol=1e-9, rtol=0)

    @pytest.mark.parametrize("size", [1, 3, 16])
    def test_rounding_errors_of_constant_embeddings_are_not_amplified(self, size):
        o, p, speakers = voices(speakers=9, each=4, size=size)
        p = p[:1].expand(36, size)
        for attack in EVERY:
            found = fitted(attack, o, p, speakers).attack(None, p)[1]
            if isinstance(attack, LikelihoodRatio):
                found = found[:, :-2]  # the others are 1 and a bias
            if attack.needs == NOTHING:
                expected = torch.nn.functional.normalize(p)
            else:
                expected = torch.zeros_like(found)
            assert_close(found, expected)

    def test_constant_dimensions_are_ignored(self):
        o, p, speakers = voices()
        o, p = (torch.nn.functional.pad(side, (0, 1)) for side in (o, p))
        moved = p + 1e-9 * torch.eye(9, dtype=p.dtype)[8]
        for attack in (attack for attack in EVERY if attack.needs != NOTHING):
            one = fitted(attack, o, p, speakers)
            assert_close(one.attack(None, moved)[1], one.attack(None, p)[1])

    def test_directions_beyond_the_rank_are_never_used(self):
        o, p, speakers = voices(speakers=6, each=2, size=40)
        sets = TrainingSets(o, p, speakers)
        rows = sets.view_rows("protected", CENTRED, slice(None))[0]
        basis = torch.linalg.svd(rows - rows.mean(0))[2][:11]  # twelve rows about their mean
        outside = torch.randn(
            1, 40, generator=torch.Generator().manual_seed(1), dtype=torch.float64
        )
        outside = outside - outside @ basis.T @ basis
        for attack in (RidgeToOriginal(), Whitening(), WithinClassWhitening()):
            maps = attack.maps(sets.statistics(CENTRED), 1e-4)
            used = (basis @ maps.map_p[0]).norm(dim=1).median()
            assert (outside @ maps.map_p[0]).norm() < 1e-7 * used


@pytest.mark.parametrize("attack", EVERY, ids=lambda attack: attack.name)
class TestEveryAttack:
    def test_scores_are_independent_of_order_labels_and_dtype(self, attack):
        o, p, speakers = voices()
        expected = scores(fitted(attack, o, p, speakers), o, p)
        order = torch.randperm(len(o), generator=torch.Generator().manual_seed(1))
        renamed = (7 * speakers + 3) % 20 - 5
        found = scores(fitted(attack, o[order], p[order], renamed[order]), o, p)
        assert_close(found, expected, atol=1e-9, rtol=0)
        o = o.float()
        p = p.float()
        # The same numbers in another dtype: the choice of folds takes rows by all their digits.
        expected = scores(fitted(attack, o.double(), p.double(), speakers), o.double(), p.double())
        assert_close(
            scores(fitted(attack, o, p, speakers), o, p), expected.float(), atol=1e-3, rtol=1e-3
        )

    @pytest.mark.parametrize(
        ("speakers", "each", "size"), [(3, 2, 16), (2, 1, 4), (1, 3, 4), (6, 3, 40), (1, 1, 2)]
    )
    def test_tiny_data_sets_give_finite_scores(self, attack, speakers, each, size):
        o, p, names = voices(speakers, each, size)
        o[0] = 0
        for left, right in (
            (o, p),
            (torch.ones_like(o), torch.ones_like(p)),
            (o, torch.zeros_like(p)),
        ):
            assert scores(fitted(attack, left, right, names), o, p).isfinite().all()

    def test_missing_sides_stay_none_and_pickling_keeps_scores(self, attack):
        o, p, speakers = voices()
        one = fitted(attack, o, p, speakers)
        assert one.attack(None, p)[0] is one.attack(o, None)[1] is None
        assert_close(
            scores(pickle.loads(pickle.dumps(one)), o, p), scores(one, o, p), atol=0, rtol=0
        )
        with pytest.raises(RuntimeError, match="fitted before it attacks"):
            copy.deepcopy(attack).attack(o, p)

    def test_gradients_reach_the_attacked_embeddings(self, attack):
        o, p, speakers = voices(speakers=6, each=3, size=3)
        one = fitted(attack, o, p, speakers)
        assert torch.autograd.gradcheck(
            one.attack, (o[:3].requires_grad_(), p[:3].requires_grad_())
        )

    def test_invalid_input_raises(self, attack):
        o, p, speakers = voices(speakers=4, each=2, size=3)
        missing = p.index_fill(0, torch.tensor([2]), torch.nan)
        for rows, error, match in (
            ((o, None, speakers), TypeError, "`protected` to be a tensor, but got NoneType"),
            ((o, p, speakers[:3]), ValueError, r"`speakers` to have shape \(8,\)"),
            ((o[:0], p[:0], speakers[:0]), ValueError, "at least one row"),
            ((o, missing, speakers), ValueError, "`protected` to hold finite numbers"),
        ):
            with pytest.raises(error, match=match):
                fitted(attack, *rows)
        one = fitted(attack, o, p, speakers)
        with pytest.raises(TypeError, match="`protected` to be a tensor, but got list"):
            one.attack(o, [1.0])
        if attack.needs != NOTHING:
            with pytest.raises(
                ValueError, match="`original` to be 3 wide, as the rows fitted on, but got 2"
            ):
                one.attack(o[:, :2], p)
        if attack.needs == PAIRS:
            with pytest.raises(TypeError, match="`original` to be a tensor, but got NoneType"):
                fitted(attack, None, p, speakers)
        else:
            assert scores(fitted(attack, None, p, speakers), o, p).isfinite().all()


def test_setting_is_chosen_on_held_out_speakers():
    o, p, speakers = voices(speakers=30, each=4, size=40)
    known, (o2, p2, names) = [x[:80] for x in (o, p, speakers)], [x[80:] for x in (o, p, speakers)]
    same = names[:, None] == names
    other = ~torch.eye(40, dtype=torch.bool)
    values = {
        setting: separation_of_scores(
            scores(fitted(RidgeToOriginal(), *known, setting=setting), o2, p2), same & other, ~same
        )
        for setting in RidgeToOriginal.settings
    }
    expected = fitted(RidgeToOriginal(), o, p, speakers, setting=max(values, key=values.get))
    assert_close(
        fitted(RidgeToOriginal(), o, p, speakers).attack(None, p), expected.attack(None, p)
    )


def test_incomplete_custom_attack_raises():
    with pytest.raises(NotImplementedError, match="Expected Attack to define `fit`"):
        Attack().fit(torch.eye(2), torch.eye(2), torch.arange(2))
    with pytest.raises(NotImplementedError, match="Expected Empty to define `maps`"):
        type("Empty", (LinearAttack,), {"needs": NOTHING})().fit(
            torch.eye(2), torch.eye(2), torch.arange(2)
        )


def test_custom_attack_can_return_map_matrices():
    class Doubled(LinearAttack):
        name, needs, settings = "doubled", NOTHING, (2.0,)

        def maps(self, statistics, setting):
            return Maps(map_p=setting * torch.eye(len(statistics.mean_p), dtype=torch.float64))

    o, p, speakers = voices()
    _, mapped = Doubled().fit(o, p, speakers).attack(None, p)
    assert_close(mapped.numpy(), 2 * reference.normalise(p.numpy(), p.numpy()))
