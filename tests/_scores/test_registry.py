"""One table of numbers.

What the suite returns, what a budget may limit, and how people read them.
"""

import math

import pytest
import torch
from cases import embeddings, join
from reports import Everything, compute

import vpmetrics as vp
from vpmetrics._scores.registry import CONDITION_TITLES, scalar, scalar_keys
from vpmetrics.functional import zebra_tag
from vpmetrics.lightning import PrivacyCheckpoint, PrivacyMonitor


def test_the_suite_returns_exactly_the_scalars_of_the_table_in_its_order():
    rows = join(embeddings())
    keys = tuple(compute(vp.VoicePrivacy(metrics="all"), **rows))
    assert keys == scalar_keys(has_attacks=True) == PrivacyMonitor(metrics="all").metrics
    rows["sessions"] = torch.arange(len(rows["speakers"])) % 2
    keys = tuple(compute(Everything(), **rows))
    assert keys == scalar_keys(("OO", "OP", "PP", "within", "across"), has_sessions=True)


def test_every_scalar_name_is_unique_and_resolves():
    names = scalar_keys(tuple(CONDITION_TITLES), has_attacks=True, has_sessions=True)
    assert len(set(names)) == len(names)
    for name in names:
        known = scalar(name)
        assert known.key in (name, name.partition("_")[2])
        assert known.heading
        assert known.description
    assert {"op_d_ece_strongest", "across_d_ece_pairs", "within_eer", "op_c_ece", "g_d_ece"} <= set(
        names
    )
    assert "oo_d_ece_strongest" not in names
    assert "within_c_ece" not in names


def test_scalar_name_encodes_condition_gallery_size_and_interval_bound():
    assert [scalar(key).condition for key in ("deid", "d_ece_op_oo", "across_d_ece_reversed")] == [
        "",
        "",
        "across",
    ]
    low = scalar("op_d_ece_low")
    assert (low.condition, low.direction, low.title) == ("OP", "low", "D_ECE from [bit]")
    names = scalar_keys(("OP", "across"), sizes=(20, 1000))
    assert {"op_rate_20", "op_singling_out_1000_error", "op_gallery", "across_rate_1000"} <= set(
        names
    )
    assert "across_singling_out_20" not in names
    rate, attacked = scalar("op_rate_20000"), scalar("op_rate_20_strongest")
    assert (rate.title, rate.direction, rate.condition) == ("found among 20,000 [%]", "low", "OP")
    assert rate.show(0.125) == "12.50"
    assert scalar("rate_20_low").heading == "found among 20 from"
    assert scalar("pp_singling_out_20_error").direction is None
    assert (attacked.title, attacked.direction) == (
        "found among 20 after the strongest attack [%]",
        "low",
    )


@pytest.mark.parametrize(
    "name",
    [
        *(
            "opd_ece",
            "op_deid",
            "xx_eer",
            "op_",
            "low",
            "rate",
            "op_rate",
            "op_rate_0",
            "op_rate_x",
            "rate_20_error",
        ),
        *(
            "singling_out_5_errors",
            "op_gallery_3",
            "chance_20_strongest",
            "singling_out_20_strongest",
        ),
    ],
)
def test_unknown_names_raise(name):
    with pytest.raises(KeyError):
        scalar(name)


def test_direction_matches_higher_is_better_of_classes():
    classes = {
        "deid": vp.DeIdentification,
        "d_ece": vp.ZebraDisclosure,
        "min_cllr": vp.MinCllr,
        "cllr": vp.Cllr,
        "eer": vp.EqualErrorRate,
        "linkability": vp.Linkability,
        "max_d": vp.SimilarityRankDisclosure,
        "alid": vp.LocalInformationDisclosure,
        "c_ece_linear": vp.CalibrationDistortion,
    }
    for key, metric in classes.items():
        assert scalar(key).direction == ("high" if metric.higher_is_better else "low"), key


@pytest.mark.parametrize("suffix", ["", "/dataloader_idx_1", "_high"])
@pytest.mark.parametrize("name", ["op_ndr", "pp_eer", "d_ece_op_oo", "deid", "gvd", "pp_lid_neg"])
def test_budget_on_a_non_disclosure_raises(name, suffix):
    for prefix in ("", "val/privacy/"):
        with pytest.raises(ValueError, match="to name a disclosure, of which less is better"):
            PrivacyCheckpoint(f"{prefix}{name}{suffix}")


def test_budget_accepts_disclosures_and_unknown_names():
    for name in ("op_d_ece", "pp_alid", "across_d_ece_strongest", "op_d_ece_high", "my_leak"):
        assert PrivacyCheckpoint(f"val/privacy/{name}").budget == 0.05


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("d_ece", 0.12345, "0.123"),
        ("d_ece", 0.0004, "4e−04"),
        ("d_ece", -1e-12, "0.000"),
        ("d_ece", math.nan, "–"),
        ("deid", 0.98765, "98.77"),
        ("deid", -0.17, "−17.00"),
        ("gvd", 0.5, "+0.50"),
        ("gvd", -math.inf, "−inf"),
        ("gvd", -0.001, "0.00"),
        ("tag", 3, "C"),
        ("tag", 0, "0"),
        ("tag", -1, "?"),
        ("attack_speakers", 4.0, "4"),
    ],
)
def test_scalars_are_formatted_for_display(key, value, text):
    assert scalar(key).show(value) == text


def test_units_are_named():
    titles = [scalar(key).title for key in ("alid", "min_cllr", "l_w", "linkability")]
    assert titles == ["ALID [bit]", "min Cllr [bit]", "l_w [log10]", "linkability"]


def test_the_letters_of_tags_are_those_of_the_function():
    for number, l_w in enumerate((0.0, 0.5, 1.5, 3.0, 4.5, 5.5, 7.0)):
        assert scalar("tag").show(number) == zebra_tag(torch.tensor(l_w))
    assert (
        "A below 1, B from 1, C from 2, D from 4, E from 5, F from 6" in scalar("tag").description
    )
