"""Everything known of one system, from its embeddings or from its trials, each condition calibrated once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

from vpmetrics._checks import warn_once, warn_where
from vpmetrics._crowds import Rates, isolation_of_sides
from vpmetrics._identity import identify_sides
from vpmetrics._intervals import (
    LeftOut,
    Profiles,
    counts_of_blocks,
    counts_of_scored,
    joined,
    left_out_of_scores,
    left_out_of_system,
    left_out_of_values,
    with_ends,
)
from vpmetrics._precision import wide_dtype
from vpmetrics._scalars import HEADINGS, OF_CROWDS, SPEAKER, key_of, of_strongest, scalars_of
from vpmetrics._scores.calibration import isotonic_map, linear_map
from vpmetrics._scores.measures import (
    actual_cross_entropy,
    cllr_of_sums,
    cllr_sums,
    disclosure_of_counts,
    disclosure_of_llr,
    eer_of_steps,
    expected_disclosure,
    least_cross_entropy,
    linkability_of,
    min_cllr_of_steps,
    min_dcf_of_steps,
    raw_eer_of_steps,
)
from vpmetrics._trials import shares
from vpmetrics._trials.conditions import ALWAYS, CONDITIONS, Condition
from vpmetrics._trials.galleries import Listening
from vpmetrics._trials.identification import Identification
from vpmetrics._trials.left_out import Blocks, deal_blocks
from vpmetrics._trials.matrices import (
    Likeness,
    SimilarityMatrices,
    averages_of_grid,
    likeness_of_condition,
    likeness_of_matrix,
    own_and_others,
    ratio_to_original,
)
from vpmetrics._trials.pairs import TrialGrid
from vpmetrics._trials.passing import PassedGrid
from vpmetrics._trials.rows import Layouts
from vpmetrics._trials.scored import ScoredTrials, deal_names
from vpmetrics._trials.scorers import Scoring, resolve_scoring
from vpmetrics._trials.scores import ConditionScores, keep_scores, score_condition
from vpmetrics._trials.speakers import (
    SpeakerDisclosure,
    SpeakerIdentification,
    disclosure_of_trials,
    identification_by_speaker,
)
from vpmetrics._trials.strongest import Attackers, Strongest
from vpmetrics._trials.transfer import calibrated_between_sessions, distortion_of_runs
from vpmetrics._trials.utterances import Sides
from vpmetrics.functional.similarity import (
    normalised_relatives,
)

_WIDE_BOUND = 0.01  # bits, from which on binning is said to show

CALIBRATIONS = {"linear": linear_map, "isotonic": isotonic_map}


class Settings(NamedTuple):
    """How embeddings are compared and what is made of their scores, see :class:`vpmetrics.VoicePrivacy`."""

    similarity: str = "geometric"
    scoring: Scoring = "cosine"
    slope: float | None = None
    rank_model: str = "empirical"
    bandwidth: float | None = None
    enrolment: str | None = None
    sizes: tuple[int, ...] = ()
    origins: frozenset[tuple[str, str]] | None = None
    intervals: float | None = None

    def asks_for(self, condition: str, *families: str) -> bool:
        """Whether anything of a condition is asked for, or anything of some families of it; None asks for all."""
        return self.origins is None or any(
            name == condition and (not families or family in families) for name, family in self.origins
        )


@dataclass(frozen=True, eq=False)
class ConditionReport:
    """What is known of one condition: its scalars, and what its figures are drawn from.

    ``average_scores()`` are the mean scores of all pairs of speakers, ``(S, S)``; they cost another pass over the
    trials. ``claims_llr``: scores that somebody gave may be log-likelihood ratios as they stand, cosines are not.
    ``rates`` say how often somebody is found in a crowd, ``left_out`` what leaving speakers out changes, where that was
    asked for. ``speakers`` and ``identified``: what each speaker's trials and inputs disclose. ``calibrated()``: given
    scores, as either half of the speakers has them calibrated by the other.
    """

    scalars: dict[str, Tensor]
    scores: ConditionScores
    matrix: Tensor | None = None
    identification: Identification | None = None
    average_scores: Callable[[], Tensor] | None = None
    claims_llr: bool = False
    likeness: Likeness | None = None
    strongest: Strongest | None = None
    rates: Rates | None = None
    speakers: SpeakerDisclosure | None = None
    identified: SpeakerIdentification | None = None
    left_out: LeftOut | None = None
    profiles: Profiles | None = None
    calibrated: Callable[[], list[ScoredTrials]] | None = None

    @property
    def trials(self) -> tuple[int, int]:
        """Target and non-target trials, also where one kind is missing."""
        nontargets, targets = self.scores.trials.numbers()
        return int(targets), int(nontargets)

    @property
    def alike(self) -> tuple[Tensor, Tensor] | None:
        """How alike each voice is to itself and, on average, to the others, ``(S,)``; None where voices are unknown."""
        if self.likeness is not None:
            return self.likeness.own, self.likeness.others
        return None if self.matrix is None else own_and_others(self.matrix)

    def cross_entropy(self, prior_log_odds: Tensor) -> Tensor:
        """The least empirical cross-entropy at each prior: that of the oracle calibration."""
        return least_cross_entropy(self.scores.counts.ascending, prior_log_odds)

    def ends_of_cross_entropy(self, prior_log_odds: Tensor) -> tuple[Tensor, Tensor] | None:
        """Both ends of the interval of :meth:`cross_entropy` at each prior, where speakers were left out."""
        return None if self.profiles is None else self.profiles.ends(self.cross_entropy(prior_log_odds), prior_log_odds)

    def actual_cross_entropy(self, prior_log_odds: Tensor) -> Tensor:
        """That of the scores taken as log-likelihood ratios, for a figure: where they are many, as a histogram."""
        return actual_cross_entropy(*self.scores.trials.table(), prior_log_odds)


class Transfer(NamedTuple):
    """Scores calibrated on those of another run: what is known of that run, and the ratios by kind of calibration."""

    other: ConditionReport
    llr: dict[str, Tensor]
    counts: Tensor  # (2, P), which of the ratios are of non-targets and of targets
    scalars: dict[str, Tensor]


class PrivacyReport(NamedTuple):
    """All scalars by name, and the conditions they come from; one without a name where trials are of no condition."""

    scalars: dict[str, Tensor]
    conditions: dict[str, ConditionReport]
    matrices: SimilarityMatrices | None
    transfer: Transfer | None = None
    attack_names: tuple[str, ...] = ()
    left_out: LeftOut | None = None
    groups: Mapping[int, PrivacyReport] = MappingProxyType({})
    bits_over: Callable[[Sequence[int]], dict[int, dict[str, Tensor]]] | None = None

    @property
    def attacked(self) -> str:
        """The condition that says how well speakers are hidden."""
        return "OP" if "OP" in self.conditions else next(iter(self.conditions))


@dataclass(frozen=True, eq=False)
class System:
    """A report under the name it is shown by, with the names of its speakers, what to note, and what led to it.

    ``history``: one row of scalars per measurement of a training. ``groups``: the same of parts of the trials, by name,
    and what these weigh in an average. ``attacks``: name of each attack by its number, and what its attacker must
    have; ``unattacked``: why none was tried. ``utterances``: how many there are, both sides of one counted once.
    """

    name: str
    report: PrivacyReport
    speakers: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    history: Sequence[Mapping[str, float]] = ()
    groups: Mapping[str, System] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    attacks: tuple[tuple[str, str], ...] = ()
    utterances: int = 0
    unattacked: str = ""

    @cached_property
    def scalars(self) -> dict[str, float]:
        """All scalars of the report, in one transfer."""
        return numbers_of(self.report.scalars)

    def scalar(self, key: str, condition: str = "") -> float:
        """A scalar of the system or of a condition; NaN where it is not known."""
        return self.scalars.get(key_of(condition, key), math.nan)

    def name_of(self, place: float) -> str:
        """Name of the speaker at a place among all, ascending; their number where names are not known."""
        if math.isnan(place):
            return SPEAKER.show(place)
        known = next(each.speakers.speakers for each in self.report.conditions.values() if each.speakers is not None)
        numbers, number = known.unique().tolist(), int(known[int(place)])
        return self.speakers[numbers.index(number)] if self.speakers else SPEAKER.show(number)


def unprotected(systems: Sequence[System]) -> str:
    """What to call original speech beside systems, one of which may be called so itself."""
    return "original" if all(system.name != "original" for system in systems) else "original speech"


def numbers_of(scalars: Mapping[str, Tensor]) -> dict[str, float]:
    """All values in one transfer."""
    values = list(scalars.values())
    row = torch.stack([value.to(wide_dtype(value.device)) for value in values]).tolist() if values else []
    return dict(zip(scalars, row, strict=True))


def report_condition(
    sides: Sides,
    condition: Condition,
    settings: Settings,
    attackers: Attackers | None = None,
    layouts: Layouts | None = None,
) -> ConditionReport:
    """One condition of embeddings, from two passes over its pairs; of what is not asked for, only the scores.

    ``layouts``: what conditions of the same sides share.
    """
    grid = _pairs(sides, condition, settings, layouts)
    scores = score_condition(grid, settings.bandwidth)
    scalars = _scalars_of_scores(scores)
    _warn_of_wide_bins(condition, scores, scalars["d_ece"])
    likeness = matrix = identification = speakers = identified = strongest = None
    by_speaker = settings.asks_for(condition.name, "speaker")
    blocks = None if settings.intervals is None else deal_blocks(sides)
    left_out: list[LeftOut] = []
    profiles = None
    if by_speaker or settings.asks_for(condition.name, "matrix"):
        likeness, matrix, speakers = likeness_of_condition(grid, scores, settings.similarity, by_speaker)
        scalars |= {"d_diag": likeness.dominance, "d_diag_log": likeness.dominance_log}
    if blocks is not None and settings.intervals is not None:
        counts = counts_of_blocks(grid, scores, likeness, matrix, settings.similarity, blocks)
        voices = grid.voices.sort().values
        left_out.append(left_out_of_scores(voices, scores, counts, likeness, settings.similarity, blocks))
        profiles = None if counts is None else Profiles(counts, blocks.ratio, settings.intervals)
    del grid  # which holds all rows once more
    if by_speaker or settings.asks_for(condition.name, "rank", "local"):
        informed = by_speaker or not shares.apart() or settings.asks_for(condition.name, "local")
        found = identify_sides(sides, condition, settings.scoring, settings.slope, settings.bandwidth, blocks, informed)
        together, model = found.together(), settings.rank_model
        # No figure shows the inputs of one process for those of all.
        identification = None if shares.apart() else together
        identified = identification_by_speaker(together)
        scalars |= found.of_ranks(model) | {"mean_d_chance": found.of_chance(model)}
        scalars |= found.of_information() if informed else {}
        left_out += [] if blocks is None else [found.left_out(model, blocks)]
    if speakers is not None:
        scalars |= _scalars_of_speakers(speakers, identified)
    # Original speech has nobody to undo its protection.
    if (
        attackers is not None
        and condition.name != "OO"
        and settings.asks_for(condition.name, "attack", "attacked_crowd")
    ):
        strongest = attackers.strongest(condition, blocks)
        scalars |= strongest.scalars()
        if blocks is not None and strongest.without is not None:
            left_out.append(left_out_of_values(strongest.without, blocks))
    rates = rates_of(sides, condition, settings)
    if rates is not None:
        rates = replace(rates, attackers=attackers, strongest=strongest)
        scalars |= _scalars_of_crowd(rates, settings)
        left_out += [] if blocks is None else [left_out_of_values(_crowd_without(rates, settings, blocks), blocks)]
    return ConditionReport(
        scalars,
        scores,
        matrix,
        identification,
        average_scores(sides, condition, settings),
        likeness=likeness,
        strongest=strongest,
        rates=rates,
        speakers=speakers,
        identified=identified,
        left_out=joined(left_out) if left_out else None,
        profiles=profiles,
    )


def _warn_of_wide_bins(condition: Condition, scores: ConditionScores, d_ece: Tensor) -> None:
    if scores.separated is None:
        return
    # Pooling a bin forgets an order, so its D_ECE is the least there can be; with all bins apart it is the most.
    warn_where(
        expected_disclosure(scores.counts.ascending.apart) - d_ece,
        lambda bound: (
            f"Scores of {condition.name} share bins too wide for them: its D_ECE may be off by {bound:.3f} "
            "bit. Measure fewer utterances, or scale what is compared."
            if bound > _WIDE_BOUND
            else None
        ),
    )


def rates_of(sides: Sides, condition: Condition, settings: Settings) -> Rates | None:
    """How often somebody is found in this condition, where sizes of crowds were named."""
    wanted = settings.sizes and settings.asks_for(condition.name, *OF_CROWDS)
    return Rates(sides, condition, settings.scoring, settings.bandwidth) if wanted else None


def _scalars_of_crowd(rates: Rates, settings: Settings) -> dict[str, Tensor]:
    condition = rates.condition
    scalars: dict[str, Tensor] = {}
    calibrated = condition.name in ALWAYS  # conversations of several sessions cannot calibrate each other
    if settings.asks_for(condition.name, "crowd"):
        scalars |= rates(settings.sizes)
        if calibrated:
            scalars |= isolation_of_sides(rates.sides, Listening(condition), settings.sizes, settings.scoring)
    if settings.asks_for(condition.name, "attacked_crowd"):
        attacked = rates.of_strongest(settings.sizes)
        if calibrated:
            attacked |= rates.isolation_of_strongest(settings.sizes)
        scalars |= {of_strongest(key): value for key, value in attacked.items()}
    return {key: value for key, value in scalars.items() if not key.startswith("chance")}


def _crowd_without(rates: Rates, settings: Settings, blocks: Blocks) -> dict[str, Tensor]:
    """Rates without each block of speakers. Not who is singled out: for that sets of people would be drawn anew."""
    name, found = rates.condition.name, dict[str, Tensor]()
    if settings.asks_for(name, "crowd"):
        found |= rates.without(settings.sizes, blocks)
    if settings.asks_for(name, "attacked_crowd"):
        attacked = rates.strongest_without(settings.sizes, blocks)
        found |= {of_strongest(key): value for key, value in attacked.items()}
    return found


def average_scores(sides: Sides, condition: Condition, settings: Settings) -> Callable[[], Tensor] | None:
    """What gives the mean score of every pair of voices, from another pass over their pairs.

    None where processes keep their rows apart: by the time somebody asks, they share the work no more.
    """
    return None if shares.apart() else lambda: averages_of_grid(_pairs(sides, condition, settings))


def with_transfer(known: ConditionReport, sides: Sides, settings: Settings) -> ConditionReport:
    """What is known of OP with C_ECE between sessions, by a linear calibration, which stays whoever is left out."""

    def trials_of(run: Sides) -> ScoredTrials:
        grid = _pairs(run, CONDITIONS["OP"], settings)
        if settings.intervals is None:
            return ScoredTrials(*grid.all_trials())
        return ScoredTrials(*grid.all_trials(), torch.stack(grid.speakers_of(grid)))

    runs = calibrated_between_sessions(sides, trials_of)
    scalars, left_out = {**known.scalars, "c_ece": distortion_of_runs(runs)}, known.left_out
    if left_out is not None:
        without = torch.stack([run.disclosure_without(run.scores, left_out.blocks) for run in runs]).mean(0)
        left_out = joined([left_out, left_out_of_values({"c_ece": without}, left_out.blocks)])
    return replace(known, scalars=scalars, left_out=left_out)


def _pairs(sides: Sides, condition: Condition, settings: Settings, layouts: Layouts | None = None) -> TrialGrid:
    if shares.apart():
        return PassedGrid(sides, condition, resolve_scoring(settings.scoring), settings.enrolment)
    both, scorer = sides.pair(condition, settings.enrolment), resolve_scoring(settings.scoring)
    if settings.enrolment is not None:  # then sides are cut out anew for every condition
        layouts = None
    return TrialGrid(*both, sides.voices, scorer, condition, digits=settings.bandwidth is None, layouts=layouts)


def report_of_trials(
    trials: Mapping[str, ScoredTrials],
    fit: ScoredTrials | None = None,
    speakers: int = 0,
    similarity: str | None = "geometric",
    intervals: float | None = None,
) -> PrivacyReport:
    """All that scores say, by condition, of speakers ``0 ... speakers - 1``; ``fit`` are those of another run.

    Without ``similarity`` there are no matrices; ``intervals`` says how often these are to hold the truth.
    """
    settings = Settings(similarity or "", intervals=intervals)
    names = torch.arange(speakers)
    with warn_once():
        conditions = {name: _report_scored(given, name, names, settings) for name, given in trials.items()}
        report = join_conditions(conditions, names, intervals=intervals)
        if fit is None:
            return report
        transfer, left_out = _transfer(trials[report.attacked], fit, names if intervals else None)
        scalars = transfer.scalars if intervals is None else with_ends(transfer.scalars, left_out, intervals)
    return report._replace(scalars={**report.scalars, **scalars}, transfer=transfer)


def join_conditions(
    conditions: dict[str, ConditionReport],
    names: Tensor,
    dtype: torch.dtype | None = None,
    sizes: Sequence[int] = (),
    intervals: float | None = None,
) -> PrivacyReport:
    """One report of all conditions: their scalars by name, and those that compare them, in the order of the table.

    With ``intervals``, how often these are to hold the truth, each scalar is followed by its lower and upper end.
    """
    matrices = {name: each.matrix for name, each in conditions.items() if each.matrix is not None}
    scalars = {key_of(name, key): value for name, each in conditions.items() for key, value in each.scalars.items()}
    dominance = {name: each.scalars["d_diag"] for name, each in conditions.items() if "d_diag" in each.scalars}
    if {"OO", "OP"} <= set(dominance):
        scalars["deid"] = 1 - ratio_to_original(dominance["OP"], dominance["OO"])
    if {"OO", "PP"} <= set(dominance):
        scalars["gvd"] = 10 * ratio_to_original(dominance["PP"], dominance["OO"]).log10()
    if {"OO", "OP", "PP"} <= set(conditions):
        scalars |= normalised_relatives(scalars)
    if dtype is not None:
        scalars = {key: value.to(dtype) for key, value in scalars.items()}
    order = scalars_of(("", *HEADINGS), attacks=True, sessions=True, sizes=sizes)
    scalars = {key: scalars[key] for key in order if key in scalars}
    left_out = left_out_of_system(scalars, {name: each.left_out for name, each in conditions.items()})
    if intervals is not None:
        scalars = with_ends(scalars, left_out, intervals)
    return PrivacyReport(scalars, conditions, _all_matrices(matrices, names) if matrices else None, left_out=left_out)


def _all_matrices(matrices: Mapping[str, Tensor], names: Tensor) -> SimilarityMatrices:
    unknown = torch.full_like(next(iter(matrices.values())), torch.nan)
    oo, op, pp = (matrices.get(condition, unknown) for condition in ("OO", "OP", "PP"))
    return SimilarityMatrices(oo=oo, op=op, pp=pp, speakers=names)


def _report_scored(given: ScoredTrials, condition: str, names: Tensor, settings: Settings) -> ConditionReport:
    scores, similarity = keep_scores(given.scores, given.is_target, given.within), settings.similarity
    scalars = _scalars_of_scores(scores)
    if given.speakers is None:
        return ConditionReport(scalars, scores, claims_llr=True)
    names = names.to(given.scores.device)
    likeness = matrix = speakers = averages = None
    if condition and similarity:
        (llr,) = scores.look_up([scores.llr_of_both_orders()])(given.scores)
        mean = given.averages(llr if similarity == "sigmoid" else logsigmoid(llr), len(names))
        matrix = mean.sigmoid() if similarity == "sigmoid" else mean.exp()
        likeness, averages = likeness_of_matrix(matrix, given.within), partial(given.averages, given.scores, len(names))
        speakers = disclosure_of_trials(scores, given.scores, given.is_target, given.speakers, names)
        scalars |= {"d_diag": likeness.dominance, "d_diag_log": likeness.dominance_log}
        scalars |= _scalars_of_speakers(speakers)
    left_out = profiles = None
    if settings.intervals is not None:
        blocks = deal_names(names)
        counts = counts_of_scored(given, scores, likeness, matrix, similarity, blocks)
        left_out = left_out_of_scores(names, scores, counts, likeness, similarity, blocks)
        profiles = None if counts is None else Profiles(counts, blocks.ratio, settings.intervals)
    return ConditionReport(
        scalars,
        scores,
        matrix,
        average_scores=averages,
        claims_llr=True,
        likeness=likeness,
        speakers=speakers,
        left_out=left_out,
        profiles=profiles,
        calibrated=given.calibrated_by_others,
    )


def _transfer(attacked: ScoredTrials, fit: ScoredTrials, names: Tensor | None) -> tuple[Transfer, LeftOut | None]:
    """What an attacker makes of scores who learnt to calibrate on another run (figure 8 of the 2022 paper).

    And with names of speakers, what leaving these out changes; the calibration stays.
    """
    scores = keep_scores(fit.scores, fit.is_target)
    other = ConditionReport(_scalars_of_scores(scores), scores, claims_llr=True)
    llr = {kind: learn(fit.scores, fit.is_target)(attacked.scores) for kind, learn in CALIBRATIONS.items()}
    scalars, without = {}, {}
    blocks = None if names is None or attacked.speakers is None else deal_names(names.to(attacked.scores.device))
    for kind, values in llr.items():
        scalars[f"c_ece_{kind}"] = disclosure_of_llr(values, attacked.is_target)
        scalars[f"cllr_{kind}"] = cllr_of_sums(*cllr_sums(values, attacked.is_target))
        if blocks is not None:
            without[f"c_ece_{kind}"] = attacked.disclosure_without(values, blocks)
            without[f"cllr_{kind}"] = attacked.cllr_without(values, blocks)
    transfer = Transfer(other, llr, torch.stack([~attacked.is_target, attacked.is_target]), scalars)
    return transfer, None if blocks is None else left_out_of_values(without, blocks)


def _scalars_of_scores(scores: ConditionScores) -> dict[str, Tensor]:
    steps = scores.counts.ascending
    return {
        **disclosure_of_counts(scores.counts, wide_dtype(steps.targets.device)),
        "min_cllr": min_cllr_of_steps(steps),
        "cllr": cllr_of_sums(*scores.trials.cllr_sums()),
        "eer": eer_of_steps(steps),
        "raw_eer": raw_eer_of_steps(steps),
        "min_dcf": min_dcf_of_steps(steps, p_target=0.01, c_miss=1.0, c_fa=1.0),
        "linkability": linkability_of(scores.trials),
    }


def _scalars_of_speakers(
    disclosed: SpeakerDisclosure, identified: SpeakerIdentification | None = None
) -> dict[str, Tensor]:
    """Who of those looked for is protected worst, and how far speakers are apart; of those whose values are known."""
    values = disclosed.probed.d_ece
    worst, place = _largest(values)
    deviations, others = values - values.nanmean(), ((~values.isnan()).sum() - 1).clamp(min=0)
    scalars = {
        "worst_speaker_d_ece": worst,
        "worst_speaker": place,
        "speaker_d_ece_spread": (deviations.square().nansum() / others).sqrt(),
    }
    if identified is not None:
        for key in ("mean_d", "alid"):
            scalars[f"worst_speaker_{key}"], _ = _largest(getattr(identified, key))
    return scalars


def _largest(values: Tensor) -> tuple[Tensor, Tensor]:
    """The largest value that is a number, and its place; NaN where none is."""
    values = pad(values, (0, 1), value=math.nan)
    place = torch.where(values.isnan(), -torch.inf, values).argmax(0, keepdim=True)
    largest = values.gather(0, place).squeeze(0)
    return largest, torch.where(largest.isnan(), torch.nan, place.squeeze(0))
