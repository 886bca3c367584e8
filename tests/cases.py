"""One row per metric: how it is made, what it is fed, and two other ways to its value.

The contract suite runs over every row, so a metric joins it by adding one.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import reference
import torch
from reports import Everything, compute
from torch.testing import assert_close
from torch.utils._pytree import tree_map, tree_map_only

import vpmetrics as vp
from vpmetrics import functional as F
from vpmetrics.attacks import Plain

Batch = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """``function`` and ``reference`` take all batches joined, as tensors and as float64 arrays."""

    name: str
    metric: Callable[..., Any]
    function: Callable[..., Any]
    reference: Callable[..., Any]
    batches: Callable[..., list[Batch]]
    undefined: tuple[Batch, ...] = ()
    # made with a bandwidth, where that is not an argument of its own
    smooth: Callable[..., Any] | None = None
    # ends of the keys that have tests of their own in place of a reference
    unreferenced: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name


# Slopes are fitted on binned scores, and the trials of one speaker share cells of the score axis.
_COARSE = ("alid", "lid_pos", "lid_neg", "lid_max", "worst_speaker_disclosure")


def assert_same(
    value: Any, expected: Any, atol: float = 1e-12, rtol: float = 1e-12, coarse: float = 0.0
) -> None:
    """Equal in every entry; NaN equals NaN. ``coarse`` is allowed where bins are used."""
    for key, entry, expected_entry in _pairs_of_entries(value, expected, "value"):
        allowed = atol
        if key.endswith(_COARSE):
            allowed = max(atol, coarse)
        assert_close(
            torch.as_tensor(entry).double().cpu(),
            torch.as_tensor(expected_entry).double().cpu(),
            atol=allowed,
            rtol=rtol,
            equal_nan=True,
            msg=lambda text, key=key: f"{key}: {text}",
        )


def _pairs_of_entries(value: Any, expected: Any, key: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(expected, dict):
        assert set(value) == set(expected), (
            f"{key} has other keys: {sorted(set(value) ^ set(expected))}"
        )
        pairs = [(str(name), value[name], entry) for name, entry in expected.items()]
    elif isinstance(expected, (tuple, list)):
        assert len(value) == len(expected), f"{key}: {len(value)} entries, not {len(expected)}"
        pairs = [(f"{key}[{i}]", value[i], entry) for i, entry in enumerate(expected)]
    else:
        yield key, value, expected
        return
    for name, entry, expected_entry in pairs:
        yield from _pairs_of_entries(entry, expected_entry, name)


def entries(value: Any) -> list[torch.Tensor]:
    """Everything in a value that is not an integer; the tag of undefined scores is -1."""
    if isinstance(value, dict):
        value = tuple(part for key, part in value.items() if not key.endswith("tag"))
    return [
        part
        for part in (value if isinstance(value, tuple) else [value])
        if part.is_floating_point()
    ]


def feed(metric: Any, batches: list[Batch]) -> Any:
    """The metric, updated with batches."""
    for batch in batches:
        metric.update(**batch)
    return metric


def updated(case: Case, batches: list[Batch] | None = None, **kwargs: Any) -> Any:
    """A metric of the case that has seen some batches; all of the case where none are given."""
    return feed(case.metric(**kwargs), case.batches() if batches is None else batches)


_EXPECTED: dict[tuple[str, int | None], Any] = {}


def expected_value(case: Case, batches: int | None = None) -> Any:
    """The value of the function over all batches of the case, or the first so many.

    Computed once.
    """
    key = case.name, batches
    if key not in _EXPECTED:
        _EXPECTED[key] = case.function(**join(case.batches()[:batches]))
    return _EXPECTED[key]


def join(batches: list[Batch]) -> Batch:
    """All rows of all batches as one batch; the run of a batch becomes that of each of its rows."""
    with_columns = []
    for batch in batches:
        if "run" in batch:
            batch = batch | {"run": torch.full_like(batch["target"], batch["run"])}
        with_columns.append(batch)
    return tree_map(lambda *columns: torch.cat(columns), *with_columns)


def take(rows: Batch, index: Any) -> Batch:
    """Some rows of a batch."""
    return mapped(rows, lambda column: column[index])


def cut(rows: Batch, size: int) -> list[Batch]:
    """Batches of at most so many of these rows, in their order and each of one run."""
    batches = []
    for start in range(0, _count(rows), size):
        batch = take(rows, slice(start, start + size))
        if "run" not in rows:
            batches.append(batch)
            continue
        for run in set(batch["run"].tolist()):
            batches.append(take(batch, batch["run"] == run) | {"run": run})
    return batches


def _count(rows: Batch) -> int:
    return len(next(iter(rows.values())))


def mapped(batch: Batch, change: Callable[[torch.Tensor], Any]) -> Batch:
    """The batch with every tensor changed."""
    return tree_map_only(torch.Tensor, change, batch)


def scores(
    seed: int = 0, dtype: torch.dtype = torch.float64, sizes: tuple[int, ...] = (60, 50, 90, 71)
) -> list[Batch]:
    """Trials with overlapping classes and ties; every batch has both classes."""
    draw = torch.Generator().manual_seed(seed)
    batches = []
    for size in sizes:
        target = (torch.rand(size, generator=draw) < 0.3).long()
        target[:2] = torch.arange(2)
        # On a grid of eighths, which bfloat16 holds exactly and which makes ties.
        preds = torch.randn(size, generator=draw) * 1.5 + 2 * target
        preds = (preds * 8).round().div(8).clamp(-7, 7)
        batches.append({"preds": preds.to(dtype), "target": target})
    return batches


def _trials(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda preds, target: function(np.asarray(preds), np.asarray(target))


_TWO_OF_ONE_KIND = tuple(
    {"preds": torch.tensor([0.5, 1.0]), "target": torch.tensor([label, label])} for label in (0, 1)
)
_KEYS = {"1e-1": 0.1, "2.5e-1": 0.25}
_RATES = tuple(_KEYS.values())


def _reference_tpr(*trials: Any) -> dict[str, float]:
    return {
        f"tpr_at_{key}": reference.verification.tpr_at_fpr(*trials, rate)
        for key, rate in _KEYS.items()
    }


SCORE_CASES = [
    Case(name, metric, function, _trials(second), scores, _TWO_OF_ONE_KIND)
    for name, metric, function, second in (
        (
            "ZebraDisclosure",
            vp.ZebraDisclosure,
            F.zebra_disclosure,
            reference.zebra.zebra_disclosure,
        ),
        ("MinCllr", vp.MinCllr, F.min_cllr, reference.verification.min_cllr),
        (
            "EqualErrorRate",
            vp.EqualErrorRate,
            F.equal_error_rate,
            reference.verification.equal_error_rate,
        ),
        ("Linkability", vp.Linkability, F.linkability, reference.verification.linkability),
        ("Cllr", vp.Cllr, F.cllr, reference.verification.cllr),
        (
            "TPRAtFPR",
            partial(vp.TPRAtFPR, fpr=_RATES),
            partial(F.tpr_at_fpr, fpr=_RATES),
            _reference_tpr,
        ),
    )
]


def runs(seed: int = 0, dtype: torch.dtype = torch.float64) -> list[Batch]:
    """Trials of two runs in turn."""
    return [{**batch, "run": index % 2} for index, batch in enumerate(scores(seed, dtype))]


def _of_two_runs(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the scores of run 1 and those of run 0, from rows of both.

    NaN for one of them alone.
    """

    def value(preds: torch.Tensor, target: torch.Tensor, run: torch.Tensor | int) -> Any:
        run = torch.as_tensor(run).expand(target.shape)
        sides = [side[run == number] for number in (1, 0) for side in (preds, target)]
        return function(*sides) if len(run.unique()) == 2 else torch.nan

    return value


def _reference_distortion(calibration: str, *trials: torch.Tensor) -> Any:
    return reference.zebra.calibration_distortion(*(part.numpy() for part in trials), calibration)


RUN_CASES = [
    Case(
        f"CalibrationDistortion, {calibration}",
        partial(vp.CalibrationDistortion, calibration),
        _of_two_runs(partial(F.calibration_distortion, calibration=calibration)),
        _of_two_runs(partial(_reference_distortion, calibration)),
        runs,
        tuple(
            {**batch, "run": run} for batch in (*_TWO_OF_ONE_KIND, scores()[0]) for run in (0, 1)
        ),
    )
    for calibration in ("linear", "isotonic")
]


def embeddings(
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    least: int = 1,
    sizes: tuple[int, ...] = (40, 30, 45, 35),
) -> list[Batch]:
    """Utterances of eight speakers with labels of any kind, unevenly spread.

    Protection keeps part of each voice.
    """
    draw = torch.Generator().manual_seed(seed)
    batches = []
    names = torch.tensor([-5, 0, 3, 4, 11, 1000, 2049, 2**40])
    voices = torch.randn(8, 6, generator=draw)
    pseudo = torch.randn(8, 6, generator=draw)
    for size in sizes:
        others = torch.randint(8, (max(0, size - 8 * least),), generator=draw)
        index = torch.cat([torch.arange(8).repeat(least), others])
        noise = torch.randn(2, len(index), 6, generator=draw)
        original = voices[index] + noise[0]
        protected = 0.4 * original + pseudo[index] + noise[1]
        batch = {"speakers": names[index]}
        for side, rows in (("original", original), ("protected", protected)):
            batch[side] = (rows * 8).round().div(8).clamp(-7.5, 7.5).to(dtype)
        batches.append({name: batch[name] for name in ("original", "protected", "speakers")})
    return batches


def _arrays(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda original, protected, speakers: function(
        original.double().numpy(), protected.double().numpy(), speakers.numpy()
    )


def _reference_matrices(*rows: Any) -> tuple[Any, ...]:
    matrices = [
        reference.similarity.similarity_matrix(*rows, condition) for condition in ("OO", "OP", "PP")
    ]
    return (*matrices, np.unique(rows[2]))


def _of_matrices(
    function: Callable[..., Any], matrices: Callable[..., Any], place: int
) -> Callable[..., Any]:
    """A function of the matrix of originals and another one, from embeddings."""
    return lambda *rows, **named: function((found := matrices(*rows, **named))[0], found[place])


def _ranks(
    original: torch.Tensor, protected: torch.Tensor, speakers: torch.Tensor
) -> dict[str, torch.Tensor]:
    return F.rank_disclosure(F.rank_histogram(protected, speakers, original))


def _reference_ranks(
    original: Any, protected: Any, speakers: Any, order_of: Any = None
) -> dict[str, float]:
    scores, true = reference.rank.reference_scores(original, protected, speakers, order_of=order_of)
    return reference.rank.rank_disclosure(reference.rank.rank_histogram(scores, true))


def _local(
    original: torch.Tensor, protected: torch.Tensor, speakers: torch.Tensor
) -> dict[str, torch.Tensor]:
    found = F.identify(protected, speakers, original)
    return F.summarise_information(found.bits, found.linked)


def _reference_bits(
    original: Any, protected: Any, speakers: Any, order_of: Any = None
) -> tuple[Any, Any, Any]:
    """Local information of every trial, its scores, and which of them is the true speaker's."""
    local = reference.local
    scores, true = reference.rank.reference_scores(original, protected, speakers, order_of=order_of)
    bits = np.zeros(len(true))
    for speaker in np.unique(true):
        own = true == speaker
        bits[own] = local.local_disclosure(
            scores[own], true[own], local.fit_slope(scores[~own], true[~own])
        )
    return bits, scores, true


def _reference_local(
    original: Any, protected: Any, speakers: Any, order_of: Any = None
) -> dict[str, float]:
    bits, scores, true = _reference_bits(original, protected, speakers, order_of)
    summary = {
        "alid": bits.mean(),
        "pdr": (bits > 0).mean(),
        "ndr": (bits <= 0).mean(),
        "lid_max": bits.max(),
    }
    summary |= {"lid_pos": bits[bits > 0].mean(), "lid_neg": bits[bits <= 0].mean()}
    return summary | {
        "link_rate": (scores[np.arange(len(true)), true] >= scores.max(axis=1)).mean()
    }


def _reference_speakers(
    near: Any, far: Any, speakers: Any, trials: Any, side: str, order_of: Any
) -> dict[str, float]:
    bits, scores, true = _reference_bits(near, far, speakers, order_of)
    largest_means = reference.speakers.largest_means
    rank_bits = reference.speakers.rank_bits(scores, true)
    means = {
        "worst_speaker_mean_d": largest_means(rank_bits, true),
        "worst_speaker_alid": largest_means(bits, true),
    }
    return reference.speakers.worst_and_spread(*trials, side) | means


def _attackers(protected: Any, speakers: Any) -> torch.Tensor:
    """The half of the utterances that is the attacker's, as dealt.

    For protected speech that is compared with itself.
    """
    return torch.from_numpy(reference.order.places_in_groups(speakers, protected) % 2 == 0)


def _protected_only(**options: Any) -> list[Batch]:
    """Batches without original speech, so that protected speech decides the order of utterances."""
    return [
        {key: batch[key] for key in ("protected", "speakers")} for batch in embeddings(**options)
    ]


def _of_protected(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda protected, speakers: function(protected.double().numpy(), speakers.numpy())


def _found(
    protected: torch.Tensor, speakers: torch.Tensor, **_: torch.Tensor
) -> dict[str, torch.Tensor]:
    known = _attackers(protected, speakers)
    histogram = F.rank_histogram(
        protected[~known], speakers[~known], protected[known], speakers[known]
    )
    return F.reidentification_rate(histogram, (2, 5, 8))


def _reference_found(protected: Any, speakers: Any) -> dict[str, float]:
    known = _attackers(protected, speakers).numpy()
    scores, true = reference.rank.reference_scores(protected, protected, speakers, known)
    return reference.population.rates(scores, true, (2, 5, 8))


def _singled_out(
    protected: torch.Tensor, speakers: torch.Tensor, **_: torch.Tensor
) -> dict[str, torch.Tensor]:
    known = _attackers(protected, speakers)
    dtype = torch.promote_types(protected.dtype, torch.float32)
    names = speakers[known].unique()
    means = torch.stack(
        [protected[known & (speakers == name)].double().mean(0) for name in names]
    ).to(dtype)
    return F.singling_out(means, names, protected[~known].to(dtype), speakers[~known], sizes=(8,))


def _reference_singled_out(protected: Any, speakers: Any) -> dict[str, float]:
    known = _attackers(protected, speakers).numpy()
    rows = protected[~known]
    of = speakers[~known]
    order = reference.order.canonical_order(rows)
    voices = [rows[order][of[order] == name] for name in np.unique(of)]
    isolated = []
    for fold in range(min(10, max(map(len, voices)))):
        turned = [np.roll(rows, -(fold % len(rows)), axis=0)[:10] for rows in voices]
        for own, name in enumerate(np.unique(speakers)):
            model = protected[(speakers == name) & known].mean(0)
            scores = [
                np.array([reference.similarity.cosine(model, row) for row in rows])
                for rows in turned
            ]
            tested = np.array([row[0] for row in scores])
            isolated.append(
                reference.population.singling_out(tested, [row[1:] for row in scores], own, 8)
            )
    return {"singling_out_8": np.mean(isolated), "singling_out_8_error": 0.0}


_LONE = {
    "original": torch.eye(3, 6),
    "protected": 1 + torch.eye(3, 6),
    "speakers": torch.tensor([4, 4, 4]),
}
_STRANGERS = {**_LONE, "speakers": torch.tensor([1, 2, 3])}
_UNDEFINED_PROTECTED = tuple(
    {key: batch[key] for key in ("protected", "speakers")} for batch in (_LONE, _STRANGERS)
)


def _reference_suite(original: Any, protected: Any, speakers: Any) -> dict[str, float]:
    rows = (original, protected, speakers)
    sides = {"O": original, "P": protected}
    oo, op, pp, _ = _reference_matrices(*rows)
    value = {
        "deid": reference.similarity.de_identification(oo, op),
        "gvd": reference.similarity.voice_distinctiveness(oo, pp),
        **reference.similarity.embedding_relatives(*rows),
    }
    for condition, matrix in {"OO": oo, "OP": op, "PP": pp}.items():
        scores, target, pairs = reference.similarity.trials(*rows, condition)
        trials = np.asarray(scores), np.asarray(target).astype(int)
        of_speakers = *trials, np.asarray(speakers)[np.asarray(pairs).T]
        near = sides[condition[0]]
        far = sides[condition[1]]
        scalars = {
            **reference.verification.score_measures(*trials),
            "d_diag": reference.similarity.diagonal_dominance(matrix),
            "d_diag_log": reference.similarity.diagonal_dominance(matrix, log_domain=True),
            **_reference_ranks(near, far, speakers, original),
            **_reference_local(near, far, speakers, original),
            **_reference_speakers(
                near,
                far,
                speakers,
                of_speakers,
                "probed" if condition == "OP" else "both",
                original,
            ),
        }
        value.update({f"{condition.lower()}_{key}": number for key, number in scalars.items()})
        if condition != "OO":
            ways = (trials[0], -trials[0])
            better = max(
                ways, key=lambda preds: reference.zebra.zebra_disclosure(preds, trials[1])["d_ece"]
            )
            value[f"{condition.lower()}_found_in_100"] = reference.verification.found_among(
                better, trials[1]
            )
    value["found_in_100"] = max(value["op_found_in_100"], value["pp_found_in_100"])
    # Without attacks, plain comparison in either direction.
    value["disclosure"] = max(
        value[f"{name}_d_ece{way}"] for name in ("op", "pp") for way in ("", "_reversed")
    )
    return value


def _embedding_case(
    name: str,
    metric: Any,
    function: Any,
    second: Any,
    undefined: tuple[Batch, ...] = (_LONE, _STRANGERS),
    **more: Any,
) -> Case:
    return Case(
        name,
        metric,
        function,
        _arrays(second),
        **{"batches": embeddings, "undefined": undefined, **more},
    )


_REFERENCE = reference.similarity
EMBEDDING_CASES = [
    _embedding_case(
        "VoicePrivacy",
        Everything,
        lambda **rows: compute(Everything(), **rows),
        _reference_suite,
        (_LONE,),
        unreferenced=(
            "chance",
            "_conversation",
            "conversation_utterances",
            "worst_speaker_disclosure",
            "speaker_p",
        ),
    ),
    _embedding_case(
        "StrongestAttack",
        partial(vp.StrongestAttack, attacks=[Plain()]),
        lambda **rows: compute(vp.StrongestAttack(attacks=[Plain()]), **rows),
        reference.strongest.strongest,
        batches=partial(embeddings, sizes=(10, 10, 10, 10)),
    ),
    _embedding_case(
        "VoiceSimilarityMatrix",
        vp.VoiceSimilarityMatrix,
        F.voice_similarity_matrix,
        _reference_matrices,
        (_LONE,),
    ),
    _embedding_case(
        "DeIdentification",
        vp.DeIdentification,
        _of_matrices(F.de_identification, F.voice_similarity_matrix, 1),
        _of_matrices(_REFERENCE.de_identification, _reference_matrices, 1),
    ),
    _embedding_case(
        "VoiceDistinctiveness",
        vp.VoiceDistinctiveness,
        _of_matrices(F.voice_distinctiveness, F.voice_similarity_matrix, 2),
        _of_matrices(_REFERENCE.voice_distinctiveness, _reference_matrices, 2),
    ),
    _embedding_case(
        "SimilarityRankDisclosure",
        partial(vp.SimilarityRankDisclosure, condition="OP"),
        _ranks,
        _reference_ranks,
    ),
    _embedding_case(
        "LocalInformationDisclosure",
        partial(vp.LocalInformationDisclosure, condition="OP"),
        _local,
        _reference_local,
    ),
    Case(
        "ReidentificationRate",
        partial(vp.ReidentificationRate, sizes=(2, 5, 8)),
        _found,
        _of_protected(_reference_found),
        _protected_only,
        _UNDEFINED_PROTECTED,
    ),
    Case(
        "SinglingOut",
        partial(vp.SinglingOut, sizes=(8,)),
        _singled_out,
        _of_protected(_reference_singled_out),
        partial(_protected_only, least=5),
        _UNDEFINED_PROTECTED,
    ),
]


def attributes(seed: int = 0, dtype: torch.dtype = torch.float64) -> list[Batch]:
    """Utterances of eight speakers with an attribute of the speaker and one of the utterance."""
    draw = torch.Generator().manual_seed(seed)
    batches = []
    for batch in embeddings(seed, dtype):
        sex = (batch["speakers"] % 3 == 0).long() + 5
        labels = {"sex": sex, "mood": torch.randint(3, sex.shape, generator=draw)}
        moved = (batch["protected"].double() + 2 * (sex == 5)[:, None]).to(dtype)
        batches.append({**batch, "protected": moved, "attributes": labels})
    return batches


def _attributes(
    attributes: Batch, speakers: torch.Tensor, **sides: torch.Tensor
) -> dict[str, torch.Tensor]:
    values = {}
    for name, labels in attributes.items():
        found, before = (
            F.attribute_disclosure(
                sides[side], labels, speakers, permutations=1, order_by=sides["original"]
            )
            for side in ("protected", "original")
        )
        values |= {
            f"{name}_{key}": getattr(found, key)
            for key in ("disclosure", "chance", "accuracy", "majority")
        }
        values[f"{name}_original"] = before.disclosure
    return values


def _reference_attributes(attributes: Batch, **_: Any) -> dict[str, float]:
    return {
        f"{name}_majority": np.unique(each, return_counts=True)[1].max() / len(each)
        for name, each in attributes.items()
    }


ATTRIBUTE_CASE = Case(
    "AttributeDisclosure",
    partial(vp.AttributeDisclosure, ["sex", "mood"], permutations=1),
    _attributes,
    _reference_attributes,
    attributes,
    ({**_LONE, "attributes": dict.fromkeys(("sex", "mood"), torch.arange(3))},),
    unreferenced=("disclosure", "chance", "accuracy", "original"),
)
CASES = [*SCORE_CASES, *RUN_CASES, *EMBEDDING_CASES, ATTRIBUTE_CASE]
