"""What attacks fitted on other speakers must find, what they must not, and that nothing but the data decides."""

import copy
import inspect

import pytest
import torch
from reference.isotonic import pav_llr
from reference.zebra import zebra_disclosure
from reports import compute
from torch.nn.functional import normalize
from torch.testing import assert_close

import vpmetrics.attacks
from vpmetrics import StrongestAttack, VoicePrivacy
from vpmetrics._engine import cross_fitting, pair_blocks
from vpmetrics._engine.attack_folds import (
    CHANCE_TARGET,
    NO_TRIAL,
    NONTARGET,
    TARGET,
    AttackFolds,
    assign_folds,
    subsample_and_renumber,
)
from vpmetrics._engine.conditions import CONDITIONS
from vpmetrics._engine.cross_fitting import CrossFittedAttacks, variant_names_and_needs
from vpmetrics._engine.jackknife import group_speakers
from vpmetrics._engine.moments import add_moment_sums, measure_moments
from vpmetrics._engine.utterances import deduplicate_and_index, pack_utterances
from vpmetrics.attacks import (
    PLDA,
    Attack,
    CanonicalCorrelation,
    Centred,
    LikelihoodRatio,
    LinearAttack,
    Maps,
    Plain,
    Procrustes,
    RidgeToOriginal,
    TunedAttack,
)
from vpmetrics.data import demo_voices

FEW = (Plain(), Centred(), RidgeToOriginal(), Procrustes())
OVERRIDES = [
    (kind, method)
    for kind in (getattr(vpmetrics.attacks, name) for name in vpmetrics.attacks.__all__)
    if isinstance(kind, type) and issubclass(kind, TunedAttack) and "name" in vars(kind)
    for method, _ in inspect.getmembers(kind, inspect.isfunction)
    if not method.startswith("_")
]
KEYS = ("d_ece_strongest", "eer_strongest", "d_ece_chance", "strongest")


def voices(speakers=40, utterances=10, width=48, seed=0, within=1.1, falls=0.97, dtype=torch.float64):
    """Gaussian voices whose dimensions matter less and less."""
    draw = torch.Generator().manual_seed(seed)
    names = torch.arange(speakers).repeat_interleave(utterances)
    fall = falls ** torch.arange(width)
    own = torch.randn(speakers, width, generator=draw)[names] * fall.sqrt()
    noise = within * torch.randn(len(names), width, generator=draw) * fall.pow(0.25)
    return (own + noise).to(dtype), names, draw


def rotation(width, draw, dtype=torch.float64):
    return torch.linalg.qr(torch.randn(width, width, generator=draw).to(dtype))[0]


def found(original, protected, speakers, attacks="standard", condition="OP", **columns):
    metric = StrongestAttack(condition, attacks)
    metric.update(original, protected, speakers, **columns)
    return {key: value.item() for key, value in metric.compute().items()} | {"names": metric.attack_names}


def name(result):
    return result["names"][int(result["strongest"])]


def data_of(original, protected, speakers, **columns):
    return deduplicate_and_index(pack_utterances(original, protected, speakers, **columns))


class TestLength:
    """Embeddings are compared by direction, so their length hides nothing."""

    def test_utterance_gain_does_not_lower_disclosure(self):
        original, names, draw = voices()
        protected = original @ rotation(48, draw)
        gain = (3 * torch.randn(len(names), 1, generator=draw, dtype=torch.float64)).exp()
        alone, loud = (found(original, rows, names) for rows in (protected, protected * gain))
        assert alone["d_ece_strongest"] > 0.5
        assert {key: loud[key] for key in KEYS} == pytest.approx({key: alone[key] for key in KEYS}, abs=1e-6)

    def test_outlier_row_and_dimension_scales_do_not_hide_speakers(self):
        original, names, draw = voices()
        loud = original @ rotation(48, draw)
        loud[3] = 1e6 * torch.randn(48, generator=draw, dtype=torch.float64)
        scaled = original * torch.logspace(-3, 3, 48, dtype=torch.float64)
        for protected, least in ((loud, 0.49), (scaled, 0.5)):
            assert found(original, protected, names)["d_ece_strongest"] > least


class TestBattery:
    def test_each_attack_undoes_its_own_transform(self):
        """Disclosure of data that only one attack of the battery undoes."""
        original, names, draw = voices()
        turn = rotation(48, draw)
        sign = torch.randint(0, 2, (len(names), 1), generator=draw) * 2.0 - 1
        cases = {
            "plain": (original, 0.5),
            "absolute cosine": (original * sign, 0.4),
            "outer products": (original @ turn * sign, 0.25),
            "squares to protected": (original.abs() @ turn, 0.09),
            "even kernel ridge": ((original @ turn).abs(), 0.02),
        }
        for expected, (protected, least) in cases.items():
            result = found(original, protected, names)
            assert name(result) == expected
            assert result["d_ece_strongest"] > least

    def test_uneven_noise_per_dimension_does_not_hide_speakers(self):
        draw = torch.Generator().manual_seed(0)
        names = torch.arange(12).repeat_interleave(4)
        own = torch.randn(12, 96, generator=draw)[names]
        scale = torch.logspace(-2, 2, 96)[torch.randperm(96, generator=draw)]
        original = own + 0.3 * torch.randn(48, 96, generator=draw)
        protected = own + scale * torch.randn(48, 96, generator=draw)
        for condition in ("OP", "PP"):
            assert found(original, protected, names, condition=condition)["d_ece_strongest"] > 0.69

    def test_cca_finds_leakage_in_low_variance_directions(self):
        original, names, draw = voices()
        kept = torch.arange(48) < 24
        noise = torch.randn(400, 48, generator=draw, dtype=torch.float64)
        protected = original @ rotation(48, draw) * torch.where(kept, 0.02, 0.0) + noise * torch.where(kept, 1e-4, 1.0)
        result = found(original, protected, names)
        assert result["d_ece_strongest"] > 0.3
        assert name(result) == "canonical correlation"

    def test_protected_speech_alone_is_attacked_with_labels(self):
        bundled = demo_voices()
        rows = bundled.utterances % 2 == 0
        metric = StrongestAttack("PP")
        metric.update(None, bundled.protected["B2u"][rows], bundled.speakers[rows])
        values = metric.compute()
        assert values["d_ece_strongest"] > 0.3
        assert metric.attack_names[int(values["strongest"])] == "PLDA"

    def test_only_attacks_made_for_a_condition_are_fitted(self, monkeypatch):
        original, names, _ = voices(12, 4, 8)
        for attack, condition in ((PLDA, "OP"), (LikelihoodRatio, "PP")):
            with monkeypatch.context() as patch:
                patch.setattr(attack, "solve", lambda *_: pytest.fail("fitted for nothing"))
                assert found(original, original, names, condition=condition)["d_ece_strongest"] > 0


class TestFloor:
    """No result is below what plain comparison finds on all trials."""

    @pytest.mark.parametrize("condition", ["op", "pp"])
    def test_strongest_attack_is_at_least_plain_cosine_or_its_negation(self, condition):
        for seed in range(6):
            original, names, draw = voices(6 + seed, 3, 12, seed)
            leak = torch.randn((), generator=draw)
            protected = leak * original + torch.randn(original.shape, generator=draw, dtype=torch.float64)
            keys = [f"{condition}_{key}" for key in ("d_ece", "d_ece_reversed", "d_ece_strongest")]
            values = compute(VoicePrivacy(metrics=keys, intervals=0.95), original, protected, names)
            plain, turned, strongest = (values[key] for key in keys)
            assert strongest >= max(plain, turned) - 1e-12

    def test_attack_selection_keeps_a_dominant_speaker(self):
        # One speaker of 200 utterances is unchanged; choices are made with 29 others, who are hidden.
        numbers = torch.full((30,), 6)
        numbers[0] = 200
        names, draw = torch.arange(30).repeat_interleave(numbers), torch.Generator().manual_seed(0)
        fall = 0.97 ** torch.arange(48)
        original = torch.randn(30, 48, generator=draw)[names] * fall.sqrt()
        original = original + 1.1 * torch.randn(len(names), 48, generator=draw) * fall.pow(0.25)
        hidden = torch.randn(30, 48, generator=draw)[names] + 0.5 * torch.randn(len(names), 48, generator=draw)
        protected = torch.where((names != 0)[:, None], hidden, original)
        result = found(original, protected, names)
        assert result["d_ece_strongest"] > 0.4
        assert name(result) == "plain"

    def test_negated_embeddings_are_found_by_negated_cosine(self):
        original, names, _ = voices(20, 6)
        result = found(original, -original, names, attacks=[Plain()])
        assert result["d_ece_strongest"] > 0.3
        assert result["eer_strongest"] < 0.2

    def test_plain_comparison_is_always_included(self):
        assert variant_names_and_needs([Centred()])[1] == ("plain", "nothing")
        original, names, _ = voices(12, 4, 8)
        assert name(found(original, original, names, attacks=[Blind()])) == "plain"


class TestChance:
    @pytest.mark.parametrize("speakers", [12, 40])
    def test_noise_discloses_no_more_than_chance(self, speakers):
        for seed in range(5):
            original, names, draw = voices(speakers, 20, 24, seed)
            noise = torch.randn(original.shape, generator=draw, dtype=torch.float64)
            result = found(original, noise, names, FEW)
            assert result["d_ece_strongest"] == pytest.approx(result["d_ece_chance"], abs=0.01)
            assert result["d_ece_strongest"] <= 0.02

    def test_chance_level_is_low_at_full_disclosure(self):
        original, names, draw = voices(40, 10, within=0.1)
        result = found(original, original @ rotation(48, draw), names)
        assert result["d_ece_strongest"] > 0.7
        assert result["d_ece_chance"] < 0.03


class TestDeterminism:
    @pytest.mark.parametrize("kind", ["bundled", "wide", "thin"])
    def test_result_is_independent_of_threads_labels_and_row_order(self, kind):
        draw, threads, results = torch.Generator().manual_seed(1), torch.get_num_threads(), []
        if kind == "bundled":
            bundled = demo_voices()
            rows = bundled.utterances % 5 == 0
            original, protected, names = bundled.original[rows], bundled.protected["B2u"][rows], bundled.speakers[rows]
        else:
            sizes = (8, 6, 256) if kind == "wide" else (12, 4, 96)
            original, names, _ = voices(*sizes, dtype=torch.float32)
            protected = original @ rotation(sizes[2], draw, torch.float32)
            protected = protected + 0.3 * torch.randn(original.shape, generator=draw)
        order, renamed = torch.randperm(len(names), generator=draw), torch.randperm(37, generator=draw) * 7 - 40
        for number, rows, labels in ((1, slice(None), names), (2, slice(None), names), (1, order, renamed[names])):
            torch.set_num_threads(number)
            try:
                given = original[rows], protected[rows], labels[rows]
                results.append([found(*given, condition=condition) for condition in ("OP", "PP")])
            finally:
                torch.set_num_threads(threads)
        for other in results[1:]:
            for one, two in zip(results[0], other, strict=True):
                assert {key: two[key] for key in KEYS} == pytest.approx({key: one[key] for key in KEYS}, abs=1e-6)

    @pytest.mark.parametrize("columns", [(), ("sessions",), ("groups",)])
    def test_result_is_independent_of_block_size(self, columns, monkeypatch):
        original, speakers, draw = voices(24, 6)
        protected = 0.5 * original + torch.randn(original.shape, generator=draw, dtype=original.dtype)
        numbers = {"sessions": torch.arange(len(speakers)) % 2, "groups": speakers % 2}
        values = []
        for size in (512, 7):
            monkeypatch.setattr(pair_blocks, "BLOCK_SIZE", size)
            given = {key: numbers[key] for key in columns}
            values.append(
                found(original, protected, speakers, FEW, "across" if "sessions" in columns else "OP", **given)
            )
        assert {key: values[1][key] for key in KEYS} == pytest.approx({key: values[0][key] for key in KEYS}, abs=1e-9)


class Own(Attack):
    """An attacker of one's own, who learns nothing."""

    name, needs = "own", "nothing"

    def fit(self, original, protected, speakers):
        return self


class Blind(Own):
    """Sees nothing."""

    def score(self, original, protected):
        return original.new_zeros(len(original), len(protected))


class Enrolled(Own):
    """Compares with the mean of an enrolled speaker; remembers how many recordings that has."""

    name, seen = "enrolled", []

    def enrol(self, rows, speakers):
        self.seen.append(speakers.unique(return_counts=True)[1])
        same = (speakers[:, None] == speakers).to(rows)
        return same @ rows / same.sum(dim=1, keepdim=True)


class Crop(Own):
    """Compares the first half of original dimensions with the last half of protected ones."""

    def attack(self, original, protected):
        return None if original is None else original[:, :12], None if protected is None else protected[:, 12:]


class Unrotate:
    """Knows the rotation; inherits from nothing."""

    name = "unrotate"

    def __init__(self, turn):
        self.turn, self.rows = turn, 0

    def fit(self, original, protected, speakers):
        self.rows = len(protected)
        return self

    def attack(self, original, protected):
        assert self.rows > 0
        return original, None if protected is None else protected @ self.turn.T.to(protected)


class TestOwnAttacks:
    def test_custom_attack_needs_only_fit_and_attack(self):
        original, names, draw = voices(12, 20, 24)
        turn = rotation(24, draw)
        metric = StrongestAttack(attacks=[Plain(), Unrotate(turn)])
        metric.update(original, original @ turn, names)
        value = metric.compute()
        assert metric.attack_names[int(value["strongest"])] == "unrotate"
        assert value["d_ece_strongest"] > 0.3
        assert metric.attacks[1].rows == 0, "the attack given is a template, and stays as it is"

    def test_invalid_attacks_raise(self):
        for wrong in (3, [torch.nn.Linear(2, 2)], "all", []):
            with pytest.raises((TypeError, ValueError), match="`attacks`"):
                StrongestAttack(attacks=wrong)

    @pytest.mark.parametrize(("most", "given"), [(10, 10), (None, 48), (1000, 48)])
    def test_fit_receives_at_most_most_rows(self, most, given):
        class Counting(Unrotate):
            most_rows, seen = most, []

            def fit(self, original, protected, speakers):
                self.seen.append(protected.sort(dim=0).values)
                return super().fit(original, protected, speakers)

        original, speakers, draw = voices(15, 4, 24)  # folds of three
        for rows in (torch.arange(len(speakers)), torch.randperm(len(speakers), generator=draw)):
            found(original[rows], original[rows], speakers[rows], attacks=[Counting(torch.eye(24))])
        first, second = Counting.seen[: len(Counting.seen) // 2], Counting.seen[len(Counting.seen) // 2 :]
        for one, other in zip(first, second, strict=True):
            assert len(one) == given
            assert torch.equal(one, other)  # in any order
            assert_close(one.norm(), torch.tensor(given, dtype=torch.float64).sqrt())  # of unit length

    @pytest.mark.parametrize(("kind", "method"), OVERRIDES, ids=lambda part: getattr(part, "__name__", part))
    def test_overridden_built_in_method_is_called(self, kind, method):
        def fail(self, *_):
            raise RuntimeError("as written")

        original, names, _ = voices(12, 4, 8)
        metric = StrongestAttack(condition=kind.conditions[0], attacks=[type("Mine", (kind,), {method: fail})()])
        if method == "solve_moments":
            metric.observe(original, original, names)
        metric.update(original, original, names)
        with pytest.raises(RuntimeError, match="as written"):
            metric.compute()

    @pytest.mark.parametrize(("condition", "kind"), [("OP", PLDA), ("PP", Procrustes), ("within", LikelihoodRatio)])
    def test_custom_attack_for_another_condition_raises(self, condition, kind):
        message = f"`attacks` to be made for {condition}, but Mine is made for {kind.conditions[0]}"
        with pytest.raises(ValueError, match=message):
            StrongestAttack(condition=condition, attacks=[Plain(), type("Mine", (kind,), {})()])
        StrongestAttack(condition=condition, attacks=[Plain(), kind()])  # of the battery, which serves all conditions

    def test_subclass_of_plain_is_not_treated_as_plain(self):
        class Turned(Plain):
            def attack(self, original, protected):
                return original, None if protected is None else protected.flip(1)

        original, names, _ = voices(12, 8, 24)
        result = found(original, original.flip(1), names, attacks=[Turned()])
        assert result["d_ece_strongest"] > 0.3
        assert result["strongest"] == 0
        assert result["names"][:2] == ("plain", "plain")

    def test_custom_maps_settings_and_scores_are_used(self):
        class Turned(LinearAttack):
            name, needs, settings = "turned", "nothing", (1, 2, 3)

            def maps(self, statistics, setting):
                return Maps(map_p=torch.eye(24, dtype=torch.float64).roll(setting, 1))

        class Near(CanonicalCorrelation):
            name = "near"

            def score(self, original, protected):
                return -torch.cdist(original, protected)

        original, names, draw = voices(12, 8, 24)
        assert name(found(original, original.roll(-2, 1), names, attacks=[Turned()])) == "turned"
        assert name(found(original, original @ rotation(24, draw), names, attacks=[Near()])) == "near"

    def test_scores_with_a_large_offset_are_resolved(self):
        class Scaled(Own):
            def score(self, original, protected):
                return 1e9 + 1e6 * (original @ protected.mT)

        original, names, draw = voices(12, 8, 24)
        protected = original + torch.randn(original.shape, generator=draw, dtype=torch.float64)
        cross_fitted = CrossFittedAttacks(data_of(original, protected, names), [Scaled()], [CONDITIONS["OP"]])
        own = cross_fitted.strongest(CONDITIONS["OP"])
        plain = CrossFittedAttacks(data_of(original, protected, names), [Plain()], [CONDITIONS["OP"]])
        assert_close(own.d_ece, plain.strongest(CONDITIONS["OP"]).d_ece, atol=2e-3, rtol=0)

    @pytest.mark.parametrize("condition", ["OP", "PP"])
    def test_enrolment_excludes_the_same_recording(self, condition, monkeypatch):
        monkeypatch.setattr(Enrolled, "seen", seen := [])
        # Every recording is known by heart, and no recording says anything of another one.
        draw = torch.Generator().manual_seed(0)
        original, names = torch.randn(120, 64, generator=draw, dtype=torch.float64), torch.arange(120) // 10
        data = data_of(original, original, names, utterances=torch.arange(120))
        result = CrossFittedAttacks(data, [Enrolled()], [CONDITIONS[condition]]).strongest(CONDITIONS[condition])
        assert result.d_ece < 0.1  # luck of twelve speakers; a mean that holds the recording itself tells 0.6
        assert {int(count) for counts in seen for count in counts} == {5}

    def test_enrolment_means_disclose_more_than_single_utterances(self):
        original, names, _ = voices(20, 12, 24)
        result = found(original, original, names, attacks=[Plain(), Enrolled()])
        assert name(result) == "enrolled"
        assert result["d_ece_strongest"] > found(original, original, names, attacks=[Plain()])["d_ece_strongest"] + 0.05


class TestSources:
    def test_attack_per_group_finds_group_specific_leakage(self):
        original, names, draw = voices(40, 20, 24)
        sex = names % 2
        protected = torch.where((sex == 0)[:, None], original @ rotation(24, draw), original @ rotation(24, draw))
        result = found(original, protected, names, FEW, groups=sex)
        assert result["d_ece_strongest"] > 0.9 * found(original, original, names, [Plain()])["d_ece_strongest"]
        assert name(result).endswith(", per group")

    def test_observed_speech_improves_attacks_with_few_speakers(self):
        # Twelve measured speakers of three utterances in 60 dimensions: too few to learn a rotation from.
        original, names, draw = voices(12, 3, 60, within=2.0, falls=1.0)
        others, their_names, _ = voices(60, 20, 60, seed=1, within=2.0, falls=1.0)
        turn = rotation(60, draw)
        alone, observing = (StrongestAttack(attacks=FEW) for _ in range(2))
        for part in range(0, len(others), 100):
            rows = slice(part, part + 100)
            observing.observe(others[rows], others[rows] @ turn, their_names[rows] + 1000)
        values = []
        for metric in (alone, observing):
            metric.update(original, original @ turn, names)
            values.append(metric.compute())
        assert values[1]["d_ece_strongest"] > values[0]["d_ece_strongest"] + 0.05
        assert observing.attack_names[int(values[1]["strongest"])].endswith(", observed")
        merged = StrongestAttack(attacks=FEW)
        merged.merge_state(observing)
        assert_close(merged.compute(), values[1])
        # What was observed outlives an epoch, until it is reset, too.
        again = copy.deepcopy(observing)
        again.reset()
        again.update(original, original @ turn, names)
        assert_close(again.compute(), values[1])
        again.reset(observed=True)
        again.update(original, original @ turn, names)
        assert_close(again.compute(), values[0])

    def test_moments_are_additive_over_batches(self):
        original, names, draw = voices(7, 6, 5)
        protected = original @ rotation(5, draw)
        whole = measure_moments(original, protected, names)
        parts = [
            measure_moments(original[rows], protected[rows], names[rows])
            for rows in torch.randperm(42, generator=draw).split([1, 20, 21])
        ]
        for merged in (add_moment_sums(parts), add_moment_sums([parts[2], add_moment_sums(parts[:2])])):
            assert_close(merged, whole)
        found, (o, p) = whole.statistics(), (normalize(side) for side in (original, protected))
        assert_close(found.oo, torch.cov(o.T, correction=0))
        assert_close(found.po, (p - p.mean(0)).T @ (o - o.mean(0)) / 42)
        within = p - torch.stack([p[names == name].mean(0) for name in range(7)])[names]
        assert_close(found.within_pp, within.T @ within / 42)

    def test_report_contains_the_number_of_training_speakers(self):
        for speakers, fitted in ((6, 3), (12, 9), (40, 32), (100, 90)):
            original, names, _ = voices(speakers, 2, 4)
            assert found(original, original, names, [Plain()])["attack_speakers"] == fitted


class TestFolds:
    def test_folds_are_assigned_by_embedding_values_within_groups(self):
        original, names, draw = voices(17, 3, 6)
        groups = torch.tensor([0] * 8 + [1] * 9)[names]
        folds = assign_folds(data_of(original, original, names, groups=groups))
        assert folds.num_folds == 2
        for group in (0, 1):
            own = folds.of_speaker[:8] if group == 0 else folds.of_speaker[8:]
            assert own.bincount().tolist() in ([4, 4], [5, 4])
        order = torch.randperm(51, generator=draw)
        renamed = torch.randperm(17, generator=draw)
        again = assign_folds(data_of(original[order], original[order], renamed[names[order]], groups=groups[order]))
        # Speakers of one group have adjacent numbers, in the order of their labels.
        place = torch.cat([torch.arange(17)[:8][renamed[:8].argsort()], torch.arange(8, 17)[renamed[8:].argsort()]])
        assert torch.equal(again.of_speaker, folds.of_speaker[place])
        assert torch.equal(again.code, folds.code[place])

    def test_fewer_than_six_speakers_are_nan_with_one_warning(self):
        original, names, _ = voices(5, 4, 6)
        metric = StrongestAttack(attacks=FEW)
        metric.update(original, original, names)
        with pytest.warns(UserWarning, match="needs 6 of them") as caught:
            value = metric.compute()
        assert len(caught) == 1
        assert all(entry.isnan() for entry in value.values())

    def test_small_group_is_used_for_training_only(self):
        original, names, _ = voices(9, 4, 6)
        folds = assign_folds(data_of(original, original, names, groups=(names > 5).long()))
        assert folds.of_speaker.tolist()[6:] == [-1, -1, -1]
        assert folds.fewest_training_speakers == 6

    @pytest.mark.parametrize("condition", ["OP", "PP", "across"])
    def test_pair_kinds_match_the_definition(self, condition):
        original, names, draw = voices(12, 4, 6)
        sessions = torch.randint(2, (48,), generator=draw)
        data = data_of(original, original + 1, names, sessions=sessions, groups=names % 2)
        folds = assign_folds(data)
        attack_folds = AttackFolds(data, folds, (Plain(),))
        (comparison,) = attack_folds.form_comparisons(0, CONDITIONS[condition], Plain(), is_subsample=False)
        a, b, kinds = comparison.enrolment, comparison.test, comparison.pair_kinds
        assert len(a) == len(b) == 24
        for i in range(24):
            for j in range(24):
                same = a.speakers[i] == b.speakers[j]
                repeated = a.ids[i] == b.ids[j] or (condition == "across" and a.sessions[i] == b.sessions[j])
                if a.groups[i] != b.groups[j] or (condition != "OP" and j <= i) or (same and repeated):
                    expected = NO_TRIAL
                elif same:
                    expected = TARGET
                else:
                    expected = CHANCE_TARGET if b.speaker_index[j] == a.speaker_index[i] + 1 else NONTARGET
                assert kinds[i, j] == expected

    def test_subsample_keeps_several_rows_per_selected_speaker(self):
        original, names, _ = voices(30, 20, 4)
        data = data_of(original, original, names)
        kept = subsample_and_renumber(data.original, torch.tensor([0, 7, 29]), 5)
        assert kept.speaker_index.tolist() == [0] * 5 + [1] * 5 + [2] * 5
        assert kept.speakers.unique().tolist() == [0, 7, 29]
        assert (kept.ids.view(3, 5).diff() == 4).all()  # evenly spaced


class TestReplicates:
    @pytest.mark.parametrize("condition", ["OP", "PP"])
    def test_replicates_exclude_the_trials_of_a_speaker(self, condition):
        # An attack that learns nothing: replicates are its trials within folds, without those of a speaker.
        original, names, draw = voices(12, 8, 24)
        noise = 4 * torch.randn(96, 12, generator=draw, dtype=torch.float64)
        protected = torch.cat([noise, original[:, :12]], dim=1)
        data = data_of(original, protected, names)
        attacks = CrossFittedAttacks(data, [Crop()], [CONDITIONS[condition]])
        groups = group_speakers(data)
        result = attacks.strongest(CONDITIONS[condition], groups)
        assert {choice.attack for choice in result.choices} == {1}
        fold = attacks.folds.of_speaker[data.protected.speaker_index]
        o, p = Crop().attack(original, protected)
        left = normalize(o if condition == "OP" else p)
        scores, inside = left @ normalize(p).T, fold[:, None] == fold
        counted = ~torch.eye(96, dtype=torch.bool) if condition == "OP" else torch.ones(96, 96).triu(1).bool()
        for speaker in (None, *range(12)):
            kept = inside & counted
            if speaker is not None:
                kept = kept & (names[:, None] != speaker) & (names != speaker)
            target = (names[:, None] == names)[kept].int().numpy()
            expected = zebra_disclosure(scores[kept].numpy(), target)["d_ece"]
            place = 0 if speaker is None else 1 + speaker
            # Blocks of all trials are recalibrated, not cut: to first order that is all.
            tolerance = 1e-4 if speaker is None else 5e-3
            assert result.replicates["d_ece_strongest"][place].item() == pytest.approx(expected, abs=tolerance)
        assert_close(result.replicates["eer_strongest"][0], result.eer)

    def test_folds_with_the_same_attack_share_its_calibration(self, monkeypatch):
        original, names, draw = voices(12, 8, 24)
        noise = torch.randn(96, 12, generator=draw, dtype=torch.float64)
        protected = torch.cat([noise, original[:, :12]], dim=1)
        data = data_of(original, protected, names)
        attacks = CrossFittedAttacks(data, [Crop()], [CONDITIONS["OP"]])
        choose, number = cross_fitting.choose_attacks, assign_folds(data).num_folds
        mixed = [0] * 2 + [1] * (number - 2)

        def choose_mixed(*given, **options):
            choices = choose(*given, **options)
            return tuple(
                choice._replace(attack=each, is_negated=False) for choice, each in zip(choices, mixed, strict=True)
            )

        monkeypatch.setattr(cross_fitting, "choose_attacks", choose_mixed)
        result = attacks.strongest(CONDITIONS["OP"])
        fold = attacks.folds.of_speaker[data.protected.speaker_index]
        kept = (fold[:, None] == fold) & ~torch.eye(96, dtype=torch.bool)
        target, of = (names[:, None] == names)[kept].int().numpy(), fold[:, None].expand(96, 96)[kept].numpy()
        sides = (original, protected), Crop().attack(original, protected)
        ratios = [pav_llr((normalize(o) @ normalize(p).T)[kept].numpy(), target) for o, p in sides]
        joined = torch.tensor([ratios[mixed[k]][i] for i, k in enumerate(of)]).clamp(-1e6, 1e6).numpy()
        assert result.d_ece.item() == pytest.approx(zebra_disclosure(joined, target)["d_ece"], abs=2e-4)

    def test_chosen_folds_cover_every_speaker_once(self):
        original, names, draw = voices(12, 8, 24)
        turn = rotation(24, draw)
        attacks = CrossFittedAttacks(data_of(original, original @ turn, names), FEW, [CONDITIONS["OP"]])
        result = attacks.strongest(CONDITIONS["OP"])
        folds = attacks.chosen_folds(CONDITIONS["OP"], result)
        assert sum(len(data.original) for data, _ in folds) == 96
        for data, attack in folds:
            tests = attack.map_side(data.protected, "protected")
            scores = attack.compare(tests, attack.map_side(data.original, "original"))
            assert scores.shape == (len(data.protected), len(data.original))
            assert scores.diagonal().mean() > scores.mean() + 0.3
