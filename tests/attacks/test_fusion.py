"""What attacks fitted on other speakers must find, and what they must not.

Nothing but the data decides.
"""

import copy
import inspect
from typing import ClassVar

import pytest
import torch
from reference import strongest as reference
from reference.similarity import cosine
from reference.zebra import zebra_disclosure
from reports import compute
from samples import fading_voices
from torch.testing import assert_close

import vpmetrics.attacks
from vpmetrics import StrongestAttack, VoicePrivacy
from vpmetrics._scores.jackknife import group_speakers
from vpmetrics._utterances.conditions import CONDITIONS
from vpmetrics._utterances.encoders import Encoder
from vpmetrics._utterances.utterances import deduplicate_and_index, pack_utterances
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
    feature_blocks,
    fused_scores,
)
from vpmetrics.attacks.features import PROFILES
from vpmetrics.attacks.folds import (
    CHANCE_TARGET,
    NO_TRIAL,
    NONTARGET,
    TARGET,
    arrange_in_cells,
    assign_folds,
    label_pairs,
)
from vpmetrics.attacks.fusion import FusedAttacker
from vpmetrics.attacks.moments import UNIT, TrainingSets, measure_moments, unit_rows
from vpmetrics.data import demo_voices

FEW = (Plain(), Centred(), RidgeToOriginal(), Procrustes())
KEYS = ("d_ece_strongest", "eer_strongest", "d_ece_chance", "d_ece_labelled")


def rotation(width, draw, dtype=torch.float64):
    return torch.linalg.qr(torch.randn(width, width, generator=draw).to(dtype))[0]


def noise_like(rows, draw):
    return torch.randn(rows.shape, generator=draw, dtype=rows.dtype)


def found(original, protected, speakers, attacks="standard", condition="OP", **columns):
    metric = StrongestAttack(condition, attacks)
    values = compute(metric, original, protected, speakers, **columns)
    return {key: value.item() for key, value in values.items()}


def assert_same_result(expected, result, atol):
    for key in KEYS:
        assert result[key] == pytest.approx(expected[key], abs=atol), key


def data_of(original, protected, speakers, **columns):
    return deduplicate_and_index(pack_utterances(original, protected, speakers, **columns))


# --- What is found


def made_systems():
    """Name of what the system does, disclosure at least, original and protected rows, speakers."""
    original, names, draw = fading_voices()
    turn = rotation(48, draw)
    sign = torch.randint(0, 2, (len(names), 1), generator=draw) * 2.0 - 1
    yield "nothing", 0.5, (original, original, names)
    yield "random signs", 0.4, (original, original * sign, names)
    yield "random signs, rotated", 0.25, (original, original @ turn * sign, names)
    yield "absolute values, rotated", 0.09, (original, original.abs() @ turn, names)
    yield "absolute values of a rotation", 0.02, (original, (original @ turn).abs(), names)
    original, names, draw = fading_voices()
    has_trace = torch.arange(48) < 24
    noise = torch.randn(400, 48, generator=draw, dtype=torch.float64)
    trace = original @ rotation(48, draw) * torch.where(has_trace, 0.02, 0.0)
    # a trace in directions of low variance
    hidden = trace + noise * torch.where(has_trace, 1e-4, 1.0)
    yield "trace in low variance", 0.3, (original, hidden, names)
    bundled = demo_voices()
    rows = bundled.utterances % 2 == 0
    yield "bundled, half of it", 0.3, (None, bundled.protected["B2u"][rows], bundled.speakers[rows])


@pytest.mark.parametrize("system", list(made_systems()), ids=lambda system: system[0])
def test_absurd_systems_hide_nobody(system):
    _, least, rows = system
    condition = "PP" if rows[0] is None else "OP"
    assert found(*rows, condition=condition)["d_ece_strongest"] > least


@pytest.mark.parametrize("condition", ["OP", "PP"])
def test_uneven_noise_per_dimension_does_not_hide_speakers(condition):
    draw = torch.Generator().manual_seed(0)
    names = torch.arange(12).repeat_interleave(4)
    own = torch.randn(12, 96, generator=draw)[names]
    scale = torch.logspace(-2, 2, 96)[torch.randperm(96, generator=draw)]
    original = own + 0.3 * noise_like(own, draw)
    protected = own + scale * noise_like(own, draw)
    assert found(original, protected, names, condition=condition)["d_ece_strongest"] > 0.69


def test_only_attacks_made_for_a_condition_are_fitted(monkeypatch):
    original, names, _ = fading_voices(12, 4, 8)
    for attack, condition in ((PLDA, "OP"), (LikelihoodRatio, "PP")):
        with monkeypatch.context() as patch:
            patch.setattr(attack, "solve", lambda *_: pytest.fail("fitted for nothing"))
            assert found(original, original, names, condition=condition)["d_ece_strongest"] > 0


@pytest.mark.parametrize("condition", ["op", "pp"])
def test_strongest_attack_is_at_least_plain_cosine_or_its_negation(condition):
    for seed in range(6):
        original, names, draw = fading_voices(6 + seed, 3, 12, seed)
        protected = torch.randn((), generator=draw) * original + noise_like(original, draw)
        keys = [f"{condition}_{key}" for key in ("d_ece", "d_ece_reversed", "d_ece_strongest")]
        values = compute(VoicePrivacy(metrics=keys, intervals=0.95), original, protected, names)
        plain = values[f"{condition}_d_ece"]
        negated = values[f"{condition}_d_ece_reversed"]
        assert values[f"{condition}_d_ece_strongest"] >= max(plain, negated) - 1e-12


def test_fusion_keeps_a_dominant_speaker():
    # One speaker of 200 utterances is unchanged; weights are fitted with 29 others, who are hidden.
    original, names, draw = fading_voices(30, 200)
    rows = (names == 0) | (torch.arange(6000) % 200 < 6)
    original = original[rows]
    names = names[rows]
    hidden = torch.randn(30, 48, generator=draw).double()[names] + 0.5 * noise_like(original, draw)
    result = found(original, torch.where((names != 0)[:, None], hidden, original), names)
    assert result["d_ece_strongest"] > 0.4


# --- Chance


@pytest.mark.parametrize("speakers", [12, 40])
def test_noise_discloses_no_more_than_chance(speakers):
    for seed in range(5):
        original, names, draw = fading_voices(speakers, 20, 24, seed)
        result = found(original, noise_like(original, draw), names, FEW)
        assert result["d_ece_strongest"] == pytest.approx(result["d_ece_chance"], abs=0.01)
        assert result["d_ece_strongest"] <= 0.02


def test_chance_level_is_low_at_full_disclosure():
    original, names, draw = fading_voices(40, 10, within=0.1)
    result = found(original, original @ rotation(48, draw), names)
    assert result["d_ece_strongest"] > 0.7
    assert result["d_ece_chance"] < 0.03


# --- Nothing but the data decides


_SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "voices", [pytest.param("bundled", marks=_SLOW), pytest.param("wide", marks=_SLOW), "thin"]
)
def test_result_is_independent_of_threads_labels_and_row_order(voices):
    draw = torch.Generator().manual_seed(1)
    threads = torch.get_num_threads()
    results = []
    if voices == "bundled":
        bundled = demo_voices()
        rows = bundled.utterances % 5 == 0
        original = bundled.original[rows]
        protected = bundled.protected["B2u"][rows]
        names = bundled.speakers[rows]
    else:
        sizes = (12, 4, 96)
        if voices == "wide":
            sizes = (8, 6, 256)
        original, names, _ = fading_voices(*sizes, dtype=torch.float32)
        protected = original @ rotation(sizes[2], draw, torch.float32) + 0.3 * noise_like(
            original, draw
        )
    groups = torch.zeros_like(names)
    if voices == "thin":
        groups = names % 2
    order = torch.randperm(len(names), generator=draw)
    renamed = torch.randperm(37, generator=draw) * 7 - 40
    for num_threads, rows, labels in (
        (1, slice(None), names),
        (2, slice(None), names),
        (1, order, renamed[names]),
    ):
        torch.set_num_threads(num_threads)
        try:
            columns = original[rows], protected[rows], labels[rows]
            in_op = found(*columns, condition="OP", groups=groups[rows])
            in_pp = found(*columns, condition="PP", groups=groups[rows])
            results.append([in_op, in_pp])
        finally:
            torch.set_num_threads(threads)
        for expected, result in zip(results[0], results[-1], strict=True):
            assert_same_result(expected, result, atol=1e-6)


@pytest.mark.parametrize(
    ("condition", "column"), [("OP", None), ("across", "sessions"), ("OP", "groups")]
)
def test_result_is_independent_of_block_size(condition, column, monkeypatch):
    original, speakers, draw = fading_voices(24, 6)
    rows = original, 0.5 * original + noise_like(original, draw), speakers
    columns = {}
    if column == "sessions":
        columns["sessions"] = torch.arange(len(speakers)) % 2
    elif column == "groups":
        columns["groups"] = speakers % 2
    expected = found(*rows, FEW, condition, **columns)
    monkeypatch.setattr(feature_blocks, "ENTRIES_AT_ONCE", 3000)
    monkeypatch.setattr(fused_scores, "_ROW_ENTRIES_AT_ONCE", 1000)
    assert_same_result(expected, found(*rows, FEW, condition, **columns), atol=1e-9)


# --- Attacks of one's own


class Own(Attack):
    """An attacker of one's own, who learns nothing."""

    name = "own"
    needs = "nothing"

    def fit(self, original, protected, speakers):
        return self


class Blind(Own):
    def score(self, original, protected):
        return original.new_zeros(len(original), len(protected))


class Scaled(Own):
    def score(self, original, protected):
        return 1e9 + 1e6 * (original @ protected.mT)


class Enrolled(Own):
    """Compares with the mean of an enrolled speaker; remembers how many recordings that has."""

    name = "enrolled"
    seen: ClassVar = []

    def enrol(self, rows, speakers):
        self.seen.append(speakers.unique(return_counts=True)[1])
        same = (speakers[:, None] == speakers).to(rows)
        return same @ rows / same.sum(dim=1, keepdim=True)


class Crop(Own):
    """Compares the first half of original dimensions with the last half of protected ones."""

    def attack(self, original, protected):
        if original is not None:
            original = original[:, :12]
        if protected is not None:
            protected = protected[:, 12:]
        return original, protected


class Unrotate:
    """Knows the rotation; inherits from nothing."""

    name = "unrotate"

    def __init__(self, turn):
        self.turn = turn
        self.rows = 0

    def fit(self, original, protected, speakers):
        self.rows = len(protected)
        return self

    def attack(self, original, protected):
        assert self.rows > 0
        if protected is not None:
            protected = protected @ self.turn.T.to(protected)
        return original, protected


class Flipped(Plain):
    """Inherits the name of plain comparison, too."""

    def attack(self, original, protected):
        if protected is not None:
            protected = protected.flip(1)
        return original, protected


class Turned(LinearAttack):
    name = "turned"
    needs = "nothing"
    settings = (1, 2, 3)

    def maps(self, statistics, setting):
        return Maps(map_p=torch.eye(24, dtype=torch.float64).roll(setting, 1))


class Near(CanonicalCorrelation):
    name = "near"

    def score(self, original, protected):
        return -torch.cdist(original, protected)


def test_methods_of_custom_attacks_are_used():
    original, names, draw = fading_voices(12, 20, 24)
    turn = rotation(24, draw)
    unrotate = Unrotate(turn)
    for attack, protected in (
        (unrotate, original @ turn),
        (Flipped(), original.flip(1)),
        (Turned(), original.roll(-2, 1)),
        (Near(), original @ turn),
    ):
        result = found(original, protected, names, attacks=[attack])
        assert result["d_ece_strongest"] > 0.25
    assert unrotate.rows == 0, "the attack given is a template, and stays as it is"
    assert StrongestAttack(attacks=[Flipped()]).attack_names == ("plain", "plain")


def public_methods_of_attacks():
    """Every built-in attack that has settings, with each of its public methods."""
    for name in vpmetrics.attacks.__all__:
        attack_class = getattr(vpmetrics.attacks, name)
        if (
            isinstance(attack_class, type)
            and issubclass(attack_class, TunedAttack)
            and "name" in vars(attack_class)
        ):
            for method, _ in inspect.getmembers(attack_class, inspect.isfunction):
                if not method.startswith("_"):
                    yield attack_class, method


@pytest.mark.parametrize(
    ("attack_class", "method"),
    list(public_methods_of_attacks()),
    ids=lambda value: getattr(value, "__name__", value),
)
def test_overridden_built_in_method_is_called(attack_class, method):
    def fail(self, *_):
        raise RuntimeError("as written")

    original, names, _ = fading_voices(12, 4, 8)
    metric = StrongestAttack(
        condition=attack_class.conditions[0],
        attacks=[type("Mine", (attack_class,), {method: fail})()],
    )
    if method == "solve_statistics":
        metric.observe(original, original, names)
    with pytest.raises(RuntimeError, match="as written"):
        compute(metric, original, original, names)


def test_invalid_attacks_raise():
    for wrong in (3, [torch.nn.Linear(2, 2)], "all", []):
        with pytest.raises((TypeError, ValueError), match="`attacks`"):
            StrongestAttack(attacks=wrong)


@pytest.mark.parametrize(
    ("condition", "attack_class"), [("OP", PLDA), ("PP", Procrustes), ("within", LikelihoodRatio)]
)
def test_custom_attack_for_another_condition_raises(condition, attack_class):
    message = (
        f"`attacks` to be made for {condition}, but Mine is made for {attack_class.conditions[0]}"
    )
    with pytest.raises(ValueError, match=message):
        StrongestAttack(condition=condition, attacks=[Plain(), type("Mine", (attack_class,), {})()])
    # of the battery, which serves all conditions
    StrongestAttack(condition=condition, attacks=[Plain(), attack_class()])


@pytest.mark.parametrize(("most", "given"), [(10, 10), (None, 48), (1000, 48)])
def test_fit_receives_at_most_most_rows(most, given):
    class Counting(Unrotate):
        most_rows = most
        seen: ClassVar = []

        def fit(self, original, protected, speakers):
            self.seen.append(protected.sort(dim=0).values)
            return super().fit(original, protected, speakers)

    original, speakers, draw = fading_voices(15, 4, 24)  # folds of three
    for rows in (torch.arange(60), torch.randperm(60, generator=draw)):
        found(original[rows], original[rows], speakers[rows], attacks=[Counting(torch.eye(24))])
    rows_by_fold, shuffled_rows_by_fold = torch.stack(Counting.seen).chunk(2)
    assert torch.equal(rows_by_fold, shuffled_rows_by_fold)  # in any order
    for rows in rows_by_fold:
        assert len(rows) == given
        assert_close(rows.norm(), torch.tensor(given, dtype=torch.float64).sqrt())  # of unit length


def test_scores_with_a_large_offset_are_resolved():
    original, names, draw = fading_voices(12, 8, 24)
    data = data_of(original, original + noise_like(original, draw), names)
    condition = CONDITIONS["OP"]
    own = FusedAttacker(data, [Scaled()], [condition]).result(condition)
    plain = FusedAttacker(data, [Plain()], [condition]).result(condition)
    assert_close(
        own.measures["d_ece_strongest"], plain.measures["d_ece_strongest"], atol=2e-3, rtol=0
    )


@pytest.mark.parametrize("condition", ["OP", "PP"])
def test_enrolment_excludes_the_same_recording(condition, monkeypatch):
    monkeypatch.setattr(Enrolled, "seen", seen := [])
    # Every recording is known by heart, and no recording says anything of another one.
    original = torch.randn(120, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    data = data_of(original, original, torch.arange(120) // 10, utterances=torch.arange(120))
    attacker = FusedAttacker(data, [Enrolled()], [CONDITIONS[condition]])
    result = attacker.result(CONDITIONS[condition])
    # luck of twelve speakers; a mean that holds the recording itself tells 0.6
    assert result.measures["d_ece_strongest"] < 0.1
    assert torch.cat(seen).unique().tolist() == [5]


def test_enrolment_means_disclose_more_than_single_utterances():
    original, names, _ = fading_voices(20, 12, 24)
    alone = found(original, original, names, attacks=[Plain()])
    enrolled = found(original, original, names, attacks=[Plain(), Enrolled()])
    assert enrolled["d_ece_strongest"] > alone["d_ece_strongest"] + 0.05


# --- What attackers learn from


def test_attack_per_group_finds_group_specific_leakage():
    original, names, draw = fading_voices(40, 20, 24)
    sex = names % 2
    protected = torch.where(
        (sex == 0)[:, None], original @ rotation(24, draw), original @ rotation(24, draw)
    )
    result = found(original, protected, names, FEW, groups=sex)
    assert (
        result["d_ece_strongest"]
        > 0.9 * found(original, original, names, [Plain()])["d_ece_strongest"]
    )


def test_observed_speech_improves_attacks_with_few_speakers():
    # Twelve measured speakers of three utterances in 60 dimensions: too few to learn a rotation
    # from.
    original, names, draw = fading_voices(12, 3, 60, within=2.0, falls=1.0)
    observed, observed_names, _ = fading_voices(60, 20, 60, seed=1, within=2.0, falls=1.0)
    turn = rotation(60, draw)
    rows = original, original @ turn, names
    alone = StrongestAttack(attacks=FEW)
    observing = StrongestAttack(attacks=FEW)
    merged = StrongestAttack(attacks=FEW)
    for batch in torch.arange(len(observed)).split(100):
        observing.observe(observed[batch], observed[batch] @ turn, observed_names[batch] + 1000)
    expected = compute(alone, *rows)
    value = compute(observing, *rows)
    assert value["d_ece_strongest"] > expected["d_ece_strongest"] + 0.05
    merged.merge_state(observing)
    assert_close(merged.compute(), value, equal_nan=True)
    # What was observed outlives an epoch, until it is reset, too.
    again = copy.deepcopy(observing)
    again.reset()
    assert_close(compute(again, *rows), value, equal_nan=True)
    again.reset(observed=True)
    assert_close(compute(again, *rows), expected, equal_nan=True)


@pytest.mark.parametrize(("speakers", "fitted"), [(6, 3), (12, 9), (40, 32), (100, 90)])
def test_report_contains_the_number_of_training_speakers(speakers, fitted):
    original, names, _ = fading_voices(speakers, 2, 4)
    assert found(original, original, names, [Plain()])["attack_speakers"] == fitted


def test_observed_speakers_count_as_fitted_on():
    original, names, draw = fading_voices(40, 4, 24)
    protected = original @ rotation(24, draw) + noise_like(original, draw)
    is_measured = names < 12
    observed_rows = original[~is_measured], protected[~is_measured], names[~is_measured]
    rows = original[is_measured], protected[is_measured], names[is_measured]
    metric = StrongestAttack(attacks=FEW)
    metric.observe(*observed_rows)
    metric.observe(*rows)  # known from the folds already
    assert compute(metric, *rows)["attack_speakers"] == 9 + 28


def test_observed_speech_and_other_folds_teach_together():
    # What follows from the moments of 20 observed speakers and of the other folds, in one map.
    original, names, draw = fading_voices(32, 6, 24)
    protected = original @ rotation(24, draw) + noise_like(original, draw)
    data = data_of(original[names < 12], protected[names < 12], names[names < 12])
    is_observed = names >= 12
    rows = original[is_observed], protected[is_observed]
    moments = measure_moments(*rows, names[is_observed], [Encoder("", 24)])
    attacker = FusedAttacker(data, [RidgeToOriginal()], [CONDITIONS["OP"]], moments)
    all_fitted = attacker._scores._features[0].fitted
    (fitted,) = [attack for attack in all_fitted if "observed" in attack.label.name]
    outside = (attacker.folds.of_speaker != 0)[data.protected.speaker_index]
    fitted_on = []
    for side, observed_rows in zip((data.original, data.protected), rows, strict=True):
        measured_rows = side.embeddings[outside]
        fitted_on.append(torch.cat([unit_rows(measured_rows), unit_rows(observed_rows)]))
    sets = TrainingSets(*fitted_on, names[: len(fitted_on[0])])
    expected = RidgeToOriginal().solve(sets, UNIT, [0.01])
    test_rows = torch.randn(1, 5, 24, generator=draw, dtype=torch.float64)
    mapped_rows = fitted.solution.select_sets(slice(0, 1)).map_side(test_rows, "protected")
    assert_close(mapped_rows[0], expected.map_side(test_rows, "protected")[0])


# --- Several encoders


def test_each_encoder_learns_from_what_it_observed():
    original, protected, names = encoders_that_err_independently(seed=1, leak=0.8)
    turn = rotation(48, torch.Generator().manual_seed(0)).float()
    protected = {name: rows @ turn for name, rows in protected.items()}
    is_measured = names < 12
    observed = [{}, {}]
    measured = [{}, {}]
    for side, rows_by_encoder in enumerate((original, protected)):
        for name, rows in rows_by_encoder.items():
            observed[side][name] = rows[~is_measured]
            measured[side][name] = rows[is_measured]
    alone = StrongestAttack(attacks=FEW)
    observing = StrongestAttack(attacks=FEW)
    observing.observe(*observed, names[~is_measured])
    values = [
        compute(metric, *measured, names[is_measured])["d_ece_strongest"]
        for metric in (alone, observing)
    ]
    assert values[1] > values[0] + 0.03
    # Rows of each encoder have unit length, so that a louder one counts no more.
    loud = StrongestAttack(attacks=FEW)
    louder = [{**side, "a": 100 * side["a"]} for side in observed]
    loud.observe(*louder, names[~is_measured])
    value = compute(loud, *measured, names[is_measured])["d_ece_strongest"]
    assert_close(value, values[1], atol=1e-4, rtol=0)  # float32 rows


def encoders_that_err_independently(seed, leak=0.3, speakers=30, utterances=10, width=48):
    """Three encoders of the same speech.

    Each hears every speaker in its own way, with noise of its own.
    """
    draw = torch.Generator().manual_seed(seed)
    names = torch.arange(speakers).repeat_interleave(utterances)
    original = {}
    protected = {}
    for name in ("a", "b", "c"):
        voice = torch.randn(speakers, width, generator=draw)[names]
        original[name] = voice + torch.randn(voice.shape, generator=draw)
        protected[name] = leak * original[name] + torch.randn(voice.shape, generator=draw)
    return original, protected, names


def test_encoders_that_err_independently_are_fused():
    original, protected, names = encoders_that_err_independently(seed=0)
    fused = found(original, protected, names, FEW)["d_ece_strongest"]
    alone = [
        found(original[name], protected[name], names, FEW)["d_ece_strongest"] for name in original
    ]
    assert fused > max(alone) + 0.03


def test_fusion_of_encoders_is_at_least_plain_comparison_by_any_of_them():
    original, names, draw = fading_voices(12, 6, 16)
    noise = noise_like(original, draw)
    rows = {"a": noise, "b": original}, {"a": noise_like(original, draw), "b": original}
    result = found(*rows, names, [Plain()])
    assert (
        result["d_ece_strongest"]
        >= found(original, original, names, [Plain()])["d_ece_strongest"] - 1e-9
    )


def test_plain_comparison_names_the_encoder_whose_scores_it_takes():
    # The second encoder hears everything, and by itself finds more than any fusion with noise.
    original, names, draw = fading_voices(12, 6, 16)
    noise = noise_like(original, draw)
    other_noise = noise_like(original, draw)
    encoders = (Encoder("a", 16), Encoder("b", 16))
    both = data_of(
        torch.cat([noise, original], dim=1), torch.cat([other_noise, original], dim=1), names
    )
    data = both._replace(encoders=encoders)
    condition = CONDITIONS["OP"]
    attacker = FusedAttacker(data, [Plain()], [condition])
    groups = group_speakers(data)

    # Without plain comparison of the first encoder there is none of the second either.
    assert not attacker.result(condition, groups).is_plain

    # Replicates belong to the encoder that is compared, also if those of the first are not given.
    plain, _ = attacker._compare_plainly(condition, 0, None)
    result = attacker.result(condition, groups, plain)
    assert (result.is_plain, result.plain_encoder, result.is_negated) == (True, 1, False)
    for key, value in result.measures.items():
        assert_close(result.replicates[key][0], value, equal_nan=True)
        assert len(result.replicates[key]) == 1 + groups.num_groups


# --- Profiles, shares, learning curve


def test_a_profile_includes_the_poorer_ones():
    original, names, draw = fading_voices(24, 8, 24)
    result = found(original, original @ rotation(24, draw), names)
    values = [result[f"d_ece_{name}"] for name in ("nothing", "protected", "labelled", "pairs")]
    assert values == sorted(values)
    assert result["d_ece_strongest"] == values[-1] > values[0] + 0.1


def test_fusion_of_three_attacks_matches_the_definition():
    # Cosines of all, of the first and of the last dimensions, written in loops.
    class First(Own):
        def attack(self, original, protected):
            original = None if original is None else original[:, :6]
            protected = None if protected is None else protected[:, :6]
            return original, protected

    class Last(Own):
        def attack(self, original, protected):
            original = None if original is None else original[:, 6:]
            protected = None if protected is None else protected[:, 6:]
            return original, protected

    original, names, draw = fading_voices(9, 4, 12)
    noise = noise_like(original, draw)
    protected = torch.cat([original[:, :6], -original[:, 6:]], dim=1) + 0.5 * noise
    scores = [
        lambda row, other_row: cosine(row[:6], other_row[:6]),
        lambda row, other_row: cosine(row[6:], other_row[6:]),
    ]
    expected = reference.strongest(*(x.numpy() for x in (original, protected, names)), scores)
    result = found(original, protected, names, [Plain(), First(), Last()])
    assert result["d_ece_strongest"] > result["d_ece_chance"] + 0.1
    for key, value in expected.items():
        # Scores are counted in bins.
        assert result[key] == pytest.approx(value, abs=2e-3, nan_ok=True), key


def test_shares_add_up_and_noise_has_none():
    class Noise(Own):
        name = "noise"
        needs = "nothing"

        def score(self, original, protected):
            return torch.randn(
                len(original), len(protected), generator=torch.Generator().manual_seed(0)
            )

    original, names, draw = fading_voices(24, 8, 24)
    data = data_of(original, original + noise_like(original, draw), names)
    result = FusedAttacker(data, [Plain(), Noise()], [CONDITIONS["OP"]]).result(CONDITIONS["OP"])
    share = {attack.name: attack.share for attack in result.attacks}
    assert sum(share.values()) == pytest.approx(1)
    assert abs(share["noise"]) < 0.02


@pytest.mark.parametrize("score", [torch.inf, -torch.inf, torch.nan, 1.0])
def test_infinite_and_constant_scores_weigh_nothing(score):
    class Useless(Own):
        def score(self, original, protected):
            return original.new_full((len(original), len(protected)), score)

    original, names, draw = fading_voices(12, 6, 16)
    rows = original, original + noise_like(original, draw), names
    assert_same_result(found(*rows, FEW), found(*rows, [*FEW, Useless()]), atol=1e-6)


def test_random_scores_stay_within_chance():
    class Random(Own):
        def __init__(self, seed):
            self.seed = seed

        def score(self, original, protected):
            draw = torch.Generator().manual_seed(self.seed)
            return torch.randn(len(original), len(protected), generator=draw)

    original, names, draw = fading_voices(24, 6, 8)
    result = found(
        original, noise_like(original, draw), names, [Random(seed) for seed in range(200)]
    )
    assert result["d_ece_strongest"] <= max(0.005, result["d_ece_chance"])


def test_limit_lies_above_the_disclosure_and_needs_32_speakers():
    for speakers, is_known in ((30, False), (60, True)):
        original, names, draw = fading_voices(speakers, 4, 48)
        data = data_of(original, original @ rotation(48, draw) + noise_like(original, draw), names)
        attacker = FusedAttacker(data, FEW, [CONDITIONS["OP"]])
        result = attacker.result(CONDITIONS["OP"])
        curve = attacker.learning_curve(CONDITIONS["OP"], result)
        assert curve.limit.isfinite() == is_known
        if is_known:
            assert curve.num_speakers == (12, 24, 48)
            quarter, half, everybody = curve.d_ece
            assert quarter < half < everybody  # fewer speakers teach less
            assert_close(curve.limit, max(2 * everybody - half, everybody))


def test_learning_curve_counts_observed_speakers():
    original, names, draw = fading_voices(60, 4, 48)
    protected = original @ rotation(48, draw) + noise_like(original, draw)
    data = data_of(original[names < 20], protected[names < 20], names[names < 20])
    rows = original[names >= 20], protected[names >= 20], names[names >= 20]
    moments = measure_moments(*rows, [Encoder("", 48)])
    attacker = FusedAttacker(data, FEW, [CONDITIONS["OP"]], moments)
    curve = attacker.learning_curve(CONDITIONS["OP"], attacker.result(CONDITIONS["OP"]))
    # Half of the four speakers of a fold have pairs, a quarter has none.
    assert curve.num_speakers == (8, 16, 16 + 40)
    half, everybody, observing = curve.d_ece
    assert half < everybody < observing
    expected = (56 * observing - 16 * everybody) / 40
    assert_close(curve.limit, expected)


# --- Folds


def test_fewer_than_six_speakers_are_nan_with_one_warning():
    original, names, _ = fading_voices(5, 4, 6)
    with pytest.warns(UserWarning, match="needs 6 of them") as caught:
        value = compute(StrongestAttack(attacks=FEW), original, original, names)
    assert len(caught) == 1
    assert all(entry.isnan() for entry in value.values())


def test_small_group_is_used_for_training_only():
    original, names, _ = fading_voices(9, 4, 6)
    folds = assign_folds(data_of(original, original, names, groups=(names > 5).long()))
    assert folds.of_speaker.tolist()[6:] == [-1, -1, -1]
    assert folds.fewest_training_speakers == 6


@pytest.mark.parametrize("condition", ["OP", "PP", "across"])
def test_pair_kinds_match_the_definition(condition):
    original, names, draw = fading_voices(12, 4, 6)
    data = data_of(
        original,
        original + 1,
        names,
        sessions=torch.randint(2, (48,), generator=draw),
        groups=names % 2,
    )
    sides = data.sides(CONDITIONS[condition])
    folds = assign_folds(data)
    test = arrange_in_cells(sides[1], folds, torch.float64)
    if condition != "OP":
        enrolment = test
    else:
        enrolment = arrange_in_cells(sides[0], folds, torch.float64)
    kind_of_pair = label_pairs(enrolment, test, CONDITIONS[condition], enrolment is test)
    assert kind_of_pair.shape == (4, 12, 12)  # two folds of two groups
    for cell, i, j in torch.cartesian_prod(
        torch.arange(4), torch.arange(12), torch.arange(12)
    ).tolist():
        enrolled = sides[0].take(enrolment.row[cell, i][None])
        tested = sides[1].take(test.row[cell, j][None])
        partition = folds.partition[enrolled.speaker_index]
        assert enrolled.groups == tested.groups == partition == cell % 2
        is_target = bool(enrolled.speakers == tested.speakers)
        is_excluded = bool(enrolled.ids == tested.ids)
        if condition == "across":
            is_excluded = is_excluded or bool(enrolled.sessions == tested.sessions)
        code = folds.code[enrolled.speaker_index]
        other_code = folds.code[tested.speaker_index]
        if (condition != "OP" and j <= i) or (is_target and is_excluded):
            expected = NO_TRIAL
        elif is_target:
            expected = TARGET
        elif other_code == code + 1:
            expected = CHANCE_TARGET
        else:
            expected = NONTARGET
        assert kind_of_pair[cell, i, j] == expected


@pytest.mark.parametrize("condition", ["OP", "PP"])
def test_replicates_exclude_the_trials_of_a_speaker(condition):
    # An attack that learns nothing: replicates are its trials within folds, without those of a
    # speaker.
    original, names, draw = fading_voices(12, 8, 24)
    protected = torch.cat([4 * noise_like(original[:, :12], draw), original[:, :12]], dim=1)
    data = data_of(original, protected, names)
    attacker = FusedAttacker(data, [Crop()], [CONDITIONS[condition]])
    result = attacker.result(CONDITIONS[condition], group_speakers(data))
    assert not result.is_plain
    profile = PROFILES[result.profile]
    rows = []
    speakers = []
    for fold in attacker.fold_rows(CONDITIONS[condition], profile):
        scores = fold.enrolment_rows @ fold.test_rows.T
        if condition == "PP":
            is_trial = torch.ones_like(scores).triu(1) > 0
        else:
            is_trial = fold.enrolment.ids[:, None] != fold.test.ids
        rows.append(scores[is_trial])
        both = torch.stack(
            torch.meshgrid(fold.enrolment.speakers, fold.test.speakers, indexing="ij")
        )
        speakers.append(both[:, is_trial])
    scores = torch.cat(rows)
    speakers = torch.cat(speakers, dim=1)
    is_target = (speakers[0] == speakers[1]).int()
    d_ece_of_replicates = result.replicates["d_ece_strongest"].tolist()
    # The first replicate is that of all speakers.
    for speaker, d_ece in zip((-1, *range(12)), d_ece_of_replicates, strict=True):
        is_counted = (speakers != speaker).all(0)
        expected = zebra_disclosure(scores[is_counted].numpy(), is_target[is_counted].numpy())
        # Cells of all trials are merged, not cut: to first order that is all.
        tolerance = 1e-4 if speaker < 0 else 5e-3
        assert d_ece == pytest.approx(expected["d_ece"], abs=tolerance)
    assert_close(result.replicates["eer_strongest"][0], result.measures["eer_strongest"])
