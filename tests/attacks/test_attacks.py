"""Every attack against a slow one, and on sets that are small, thin, reordered or of few digits."""

import copy
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from reference import attacks as reference
from torch.testing import assert_close

from vpmetrics._engine.moments import (
    CENTRED,
    STANDARDISED,
    TrainingPairs,
    apply_chain,
    choose_views_by_spread,
    fit_normalisation,
    measure_moments,
    unit_rows,
)
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
    WithinClassWhitening,
)
from vpmetrics.attacks.base import NOTHING, PAIRS, score_mapped_rows, separation_of_scores

EVERY = (*STANDARD, Centred(), RidgeToOriginal(), RidgeToProtected())


def voices(speakers=20, each=6, size=8, seed=0, dtype=torch.float64):
    """Pairs of which the protected side is a bent copy of the original one."""
    draw = torch.Generator().manual_seed(seed)
    noise = torch.randn(speakers * each, size, generator=draw, dtype=torch.float64)
    o = torch.randn(speakers, size, generator=draw, dtype=torch.float64).repeat_interleave(each, 0) + 0.4 * noise
    bend = torch.randn(size, size, generator=draw, dtype=torch.float64)
    p = o @ bend + 0.3 * torch.randn(o.shape, generator=draw, dtype=torch.float64) + 2
    return o.to(dtype), p.to(dtype), torch.arange(speakers).repeat_interleave(each)


def only(attack, setting):
    """An attack without a choice."""
    attack.settings = (setting,)
    return attack


def scores(attack, original, protected):
    return score_mapped_rows(attack, *attack.attack(original, protected))


def fitted_and_normalised(attack, setting):
    """An attack without a choice, fitted on some pairs, its scores of other pairs, and both sets as it sees them."""
    o, p, speakers = voices()
    attack = only(attack, setting).fit(o[:90], p[:90], speakers[:90])
    rows = [reference.normalise(x.numpy(), x[:90].numpy()) for x in (o, p)]
    known, tests = [x[:90] for x in rows], [x[90:] for x in rows]
    return scores(attack, o[90:], p[90:]).numpy(), known, tests, speakers[:90].numpy()


class TestFormulas:
    def test_plain_comparison_is_the_cosine(self):
        o, p, speakers = voices()
        expected = reference.cosines(o.numpy(), p.numpy())
        assert_close(scores(Plain().fit(o, p, speakers), o, p).numpy(), expected)
        assert_close(scores(AbsoluteCosine().fit(o, p, speakers), o, p).numpy(), abs(expected))

    def test_centring_is_length_normalisation_around_the_mean(self):
        found, _, (o, p), _ = fitted_and_normalised(Centred(), None)
        assert_close(found, reference.cosines(o, p))

    def test_centring_by_moments_equals_centring_by_rows(self):
        o, p, speakers = voices()
        solution = Centred().solve_moments(measure_moments(o, p, speakers).statistics(), None)
        expected = fit_normalisation(unit_rows(p), CENTRED)(unit_rows(p))
        assert_close(solution.map_side(unit_rows(p), "protected"), expected)

    def test_ridge_is_penalised_least_squares(self):
        for attack, to_original in ((RidgeToOriginal(), True), (RidgeToProtected(), False)):
            found, (known_o, known_p), (o, p), _ = fitted_and_normalised(attack, 0.03)
            o, p = o - known_o.mean(0), p - known_p.mean(0)
            if to_original:
                p = p @ reference.ridge(known_p, known_o, 0.03)
            else:
                o = o @ reference.ridge(known_o, known_p, 0.03)
            assert_close(found, reference.cosines(o, p), atol=1e-9, rtol=0)

    def test_squares_are_predicted_by_ridge(self):
        found, (known_o, known_p), (o, p), _ = fitted_and_normalised(SquaresToProtected(), 0.1)
        predicted = (o**2 - (known_o**2).mean(0)) @ reference.ridge(known_o**2, known_p, 0.1)
        assert_close(found, reference.cosines(predicted, p - known_p.mean(0)), atol=1e-9, rtol=0)

    def test_procrustes_is_the_nearest_rotation(self):
        found, (known_o, known_p), (o, p), _ = fitted_and_normalised(Procrustes(), None)
        turned = (p - known_p.mean(0)) @ reference.procrustes(known_p, known_o)
        # 1e-6 of the largest singular value softens the smallest by about 1e-10.
        assert_close(found, reference.cosines(o - known_o.mean(0), turned), atol=1e-7, rtol=0)

    def test_canonical_correlation_is_the_generalised_eigenproblem(self):
        found, (known_o, known_p), (o, p), _ = fitted_and_normalised(CanonicalCorrelation(), (1e-2, 0.3))
        map_o, map_p = reference.canonical(known_o, known_p, 1e-2, 0.3)
        expected = reference.cosines((o - known_o.mean(0)) @ map_o, (p - known_p.mean(0)) @ map_p)
        assert_close(found, expected, atol=1e-9, rtol=0)

    def test_likelihood_ratio_is_that_of_gaussian_densities(self):
        found, (known_o, known_p), (o, p), _ = fitted_and_normalised(LikelihoodRatio(), (1e-2, 0.0))
        expected = reference.likelihood_ratios(o, p, known_o, known_p, 1e-2)
        assert_close(found - found[0, 0], expected - expected[0, 0], atol=1e-7, rtol=0)

    def test_labelled_attacks_follow_from_scatter_within_and_between_speakers(self):
        for attack, setting in ((WithinClassWhitening(), ("full", 1e-2)), (WithinClassWhitening(), ("diagonal", 1e-2))):
            found, (known_o, known_p), (o, p), speakers = fitted_and_normalised(attack, setting)
            within = reference.with_ridge(reference.within_and_between(known_p, speakers)[0], 1e-2)
            within = np.diag(np.diag(within)) if setting[0] == "diagonal" else within
            root = np.linalg.cholesky(np.linalg.inv(within))
            expected = reference.cosines((o - known_o.mean(0)) @ root, (p - known_p.mean(0)) @ root)
            assert_close(found, expected, atol=1e-9, rtol=0)

    def test_plda_weighs_as_its_posterior_does(self):
        found, (known_o, known_p), (o, p), speakers = fitted_and_normalised(PLDA(), 1e-2)
        root = np.linalg.svd(reference.plda(known_p, speakers, 1e-2))
        root = root[0] * np.sqrt(root[1])
        expected = reference.cosines((o - known_o.mean(0)) @ root, (p - known_p.mean(0)) @ root)
        assert_close(found, expected, atol=1e-8, rtol=0)

    def test_kernel_ridge_is_solved_as_written(self):
        found, (known_o, known_p), (o, p), _ = fitted_and_normalised(KernelRidge(), 1e-2)
        variance = known_p.var(0).sum()
        predicted = reference.kernel_ridge(
            known_p, known_o, p, 1e-2, lambda x, y: np.exp(-((x - y) ** 2).sum() / (8 * variance))
        )
        assert_close(found, reference.cosines(o - known_o.mean(0), predicted), atol=1e-9, rtol=0)

    def test_even_kernel_ridge_is_regression_on_all_products(self):
        found, (known_o, known_p), (o, p), _ = fitted_and_normalised(EvenKernelRidge(), 1e-1)
        products, tests = (reference.outer_products(x, known_o) for x in (known_o, o))
        size = (products**2).sum(1).mean()
        dual = np.linalg.solve(products @ products.T + 0.1 * size * np.eye(90), known_p - known_p.mean(0))
        expected = reference.cosines(tests @ products.T @ dual, p - known_p.mean(0))
        assert_close(found, expected, atol=1e-9, rtol=0)

    def test_outer_product_regression_matches_the_reference(self):
        found, (known_o, known_p), (o, p), _ = fitted_and_normalised(OuterProducts(), 1e-2)
        source, tests = (reference.outer_products(x, known_p) for x in (known_p, p))
        target, expected = (reference.outer_products(x, known_o) for x in (known_o, o))
        dual = np.linalg.solve(source @ source.T + 1e-2 * (source**2).sum(1).mean() * np.eye(90), target)
        # The 36 products of eight dimensions are spanned by ninety rows, so that nothing is projected away.
        assert_close(found, reference.cosines(expected, tests @ source.T @ dual), atol=1e-4, rtol=0)

    def test_separation_matches_a_loop_over_pairs(self):
        o, p, speakers = (x[:30] for x in voices(size=3))
        same, other = speakers[:, None] == speakers, ~torch.eye(30, dtype=torch.bool)
        gap = reference.separation(o.numpy(), p.numpy(), speakers.numpy())
        found = separation_of_scores(o @ p.T, same & other, ~same)
        assert found.item() == pytest.approx(np.sign(gap) * (1 - np.exp(-(gap**2) / 6.5)), abs=1e-12)
        assert separation_of_scores(o @ p.T, same & ~same, ~same) == 0


class TestNormalisation:
    def test_attacks_are_invariant_to_embedding_norm(self):
        o, p, speakers = voices()
        gain = torch.logspace(-3, 3, len(p), dtype=torch.float64)[:, None]
        for attack in EVERY:
            plain, loud = (copy.deepcopy(attack).fit(o, rows, speakers) for rows in (p, p * gain))
            assert_close(scores(loud, o, p * gain), scores(plain, o, p), atol=1e-9, rtol=0)

    def test_dimensions_are_scaled_only_where_few_hold_most_of_the_variance(self):
        o, p, _ = voices(size=30)
        assert choose_views_by_spread(unit_rows(o), unit_rows(p - 2)) == (CENTRED,)
        scaled = unit_rows(o * torch.logspace(-3, 3, 30, dtype=torch.float64))
        assert choose_views_by_spread(scaled, unit_rows(p - 2)) == (CENTRED, STANDARDISED)
        found = TrainingPairs(None, scaled, torch.arange(120), (STANDARDISED,)).rows("protected", STANDARDISED)
        expected = reference.normalise(scaled.numpy(), scaled.numpy(), is_scaled=True)
        assert_close(found.numpy(), expected, atol=1e-9, rtol=0)

    @pytest.mark.parametrize("size", [1, 3, 16])
    def test_rounding_errors_of_constant_embeddings_are_not_amplified(self, size):
        o, p, speakers = voices(speakers=9, each=4, size=size)
        p = p[:1].expand(36, size)
        for attack in EVERY:
            fitted = copy.deepcopy(attack).fit(o, p, speakers)
            expected = torch.nn.functional.normalize(p) if attack.needs == NOTHING else torch.zeros(36, 1)
            assert_close(fitted.attack(None, p)[1], expected.expand_as(fitted.attack(None, p)[1]).double())

    def test_constant_dimensions_are_ignored(self):
        rows = torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        rows = torch.cat([rows, torch.zeros(50, 1, dtype=torch.float64)], dim=1)
        pairs = TrainingPairs(None, rows, torch.arange(50) // 5, (STANDARDISED,))
        test = torch.tensor([[1.0, 2.0, 3.0, 0.0], [1.0, 2.0, 3.0, 1e-9]], dtype=torch.float64)
        first, second = pairs.normalisation("protected", STANDARDISED)(unit_rows(test))
        assert_close(first, second)
        chain = pairs.statistics(CENTRED).whiten("pp", 1e-4)
        assert chain[0][3] == 0

    def test_directions_beyond_the_rank_are_never_used(self):
        o, p, speakers = voices(speakers=6, each=2, size=40)
        pairs = TrainingPairs(o, p, speakers)
        basis = pairs.statistics(CENTRED).span("p")[0]
        assert basis.shape == (40, 11)
        assert_close(basis.T @ basis, torch.eye(11, dtype=torch.float64))
        outside = torch.randn(1, 40, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        outside = outside - outside @ basis @ basis.T
        maps = RidgeToOriginal().maps(pairs.statistics(CENTRED), 1e-4)
        assert_close(apply_chain(outside, maps.map_p), torch.zeros(1, 40, dtype=torch.float64), atol=1e-9, rtol=0)


@pytest.mark.parametrize("attack", EVERY, ids=lambda attack: attack.name)
class TestEveryAttack:
    def test_attacks_are_independent_of_order_and_labels(self, attack):
        o, p, speakers = voices()
        expected = scores(copy.deepcopy(attack).fit(o, p, speakers), o, p)
        order = torch.randperm(len(o), generator=torch.Generator().manual_seed(1))
        renamed = (7 * speakers + 3) % 20 - 5
        found = scores(copy.deepcopy(attack).fit(o[order], p[order], renamed[order]), o, p)
        assert_close(found, expected, atol=1e-9, rtol=0)

    def test_float32_matches_float64(self, attack):
        o, p, speakers = voices()
        expected = scores(copy.deepcopy(attack).fit(o, p, speakers), o, p)
        o, p = o.float(), p.float()
        found = scores(copy.deepcopy(attack).fit(o, p, speakers), o, p)
        assert found.dtype == torch.float32
        assert_close(found.double(), expected, atol=1e-3, rtol=1e-3)

    @pytest.mark.parametrize(("speakers", "each", "size"), [(3, 2, 16), (2, 1, 4), (1, 3, 4), (6, 3, 40), (1, 1, 2)])
    def test_tiny_data_sets_give_finite_scores(self, attack, speakers, each, size):
        o, p, names = voices(speakers, each, size)
        o[0] = 0
        for left, right in ((o, p), (torch.ones_like(o), torch.ones_like(p)), (o, torch.zeros_like(p))):
            fitted = copy.deepcopy(attack).fit(left, right, names)
            assert scores(fitted, o, p).isfinite().all()

    def test_missing_sides_stay_none_and_pickling_keeps_scores(self, attack):
        o, p, speakers = voices()
        fitted = copy.deepcopy(attack).fit(o, p, speakers)
        assert fitted.attack(None, p)[0] is None
        assert fitted.attack(o, None)[1] is None
        loaded = pickle.loads(pickle.dumps(fitted))
        assert_close(scores(loaded, o, p), scores(fitted, o, p), atol=0, rtol=0)
        with pytest.raises(RuntimeError, match="fitted before it attacks"):
            copy.deepcopy(attack).attack(o, p)

    def test_gradients_reach_the_attacked_embeddings(self, attack):
        o, p, speakers = voices(speakers=6, each=3, size=3)
        fitted = copy.deepcopy(attack).fit(o, p, speakers)
        assert torch.autograd.gradcheck(
            lambda left, right: fitted.attack(left, right), (o[:3].requires_grad_(), p[:3].requires_grad_())
        )

    def test_invalid_fit_input_raises(self, attack):
        o, p, speakers = voices(speakers=4, each=2, size=3)
        with pytest.raises(TypeError, match="`protected` to be a tensor, but got NoneType"):
            copy.deepcopy(attack).fit(o, None, speakers)
        with pytest.raises(ValueError, match=r"`speakers` to have shape \(8,\)"):
            copy.deepcopy(attack).fit(o, p, speakers[:3])
        with pytest.raises(ValueError, match="at least one row"):
            copy.deepcopy(attack).fit(o[:0], p[:0], speakers[:0])
        with pytest.raises(ValueError, match="`protected` to hold finite numbers"):
            copy.deepcopy(attack).fit(o, p.index_fill(0, torch.tensor([2]), torch.nan), speakers)
        fitted = copy.deepcopy(attack).fit(o, p, speakers)
        with pytest.raises(TypeError, match="`protected` to be a tensor, but got list"):
            fitted.attack(o, [1.0])
        if attack.needs != NOTHING:
            with pytest.raises(ValueError, match="`original` to be 3 wide, as the rows fitted on, but got 2"):
                fitted.attack(o[:, :2], p)
        if attack.needs == PAIRS:
            with pytest.raises(TypeError, match="`original` to be a tensor, but got NoneType"):
                copy.deepcopy(attack).fit(None, p, speakers)
        else:
            assert scores(copy.deepcopy(attack).fit(None, p, speakers), o, p).isfinite().all()


def test_setting_is_chosen_on_held_out_speakers():
    o, p, speakers = voices(speakers=30, each=4, size=40)
    attack = RidgeToOriginal().fit(o, p, speakers)
    values = []
    for setting in RidgeToOriginal.settings:
        alone = only(RidgeToOriginal(), setting).fit(o[:80], p[:80], speakers[:80])
        found = scores(alone, o[80:], p[80:])
        same, other = speakers[80:, None] == speakers[80:], ~torch.eye(40, dtype=torch.bool)
        values.append(separation_of_scores(found, same & other, ~same).item())
    best = RidgeToOriginal.settings[int(np.argmax(values))]
    expected = only(RidgeToOriginal(), best).fit(o, p, speakers)
    assert_close(attack.attack(None, p), expected.attack(None, p))


def test_incomplete_custom_attack_raises():
    with pytest.raises(NotImplementedError, match="Expected Attack to define `fit`"):
        Attack().fit(torch.eye(2), torch.eye(2), torch.arange(2))
    with pytest.raises(NotImplementedError, match="Expected Empty to define `maps`"):
        type("Empty", (LinearAttack,), {"needs": NOTHING})().fit(torch.eye(2), torch.eye(2), torch.arange(2))


def test_custom_attack_can_return_map_matrices():
    class Doubled(LinearAttack):
        name, needs, settings = "doubled", NOTHING, (2.0,)

        def maps(self, statistics, setting):
            return Maps(map_p=setting * torch.eye(len(statistics.mean_p), dtype=torch.float64))

    o, p, speakers = voices()
    attack = partial(Doubled().fit(o, p, speakers).attack, None)
    assert_close(attack(p)[1].numpy(), 2 * reference.normalise(p.numpy(), p.numpy()))
