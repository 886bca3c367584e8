"""Which data sets need which attack of the battery.

A table of what each finds, and what would be lost without it.
"""

import math

import pytest
import torch
from samples import fading_voices

from vpmetrics._utterances.conditions import CONDITIONS
from vpmetrics._utterances.utterances import deduplicate_and_index, pack_utterances
from vpmetrics.attacks import STANDARD
from vpmetrics.attacks.fusion import FusedAttacker
from vpmetrics.data import demo_voices

pytestmark = pytest.mark.bench

SIZES = {
    "": {},
    "narrow ": {"width": 8},
    "16 dimensions, many ": {"width": 16, "speakers": 150},
    "wide ": {"width": 256},
    "few ": {"speakers": 8},
    "many ": {"speakers": 200},
    "thin ": {"utterances": 3},
}


def gaussian_systems(x, speakers, draw):
    """Return protected rows by what the system does to Gaussian voices."""
    width = x.shape[1]
    turned = x @ torch.linalg.qr(torch.randn(width, width, generator=draw))[0]
    again = torch.linalg.qr(torch.randn(width, width, generator=draw))[0]
    sign, noise = (
        torch.randint(0, 2, (len(x), 1), generator=draw) * 2.0 - 1,
        torch.randn(x.shape, generator=draw),
    )
    low = (torch.arange(width) < width // 2).float()
    network = (
        torch.randn(width, 4 * width, generator=draw),
        torch.randn(4 * width, width, generator=draw),
    )
    return {
        "unchanged": x,
        "negated": -x,
        "rotation": turned,
        "rotation, noise": turned + 0.8 * noise,
        "rotation, loud noise": turned + 2 * noise,
        "sign": x * sign,
        "rotation, sign": turned * sign,
        "absolute values": x.abs(),
        "rotated absolute values": x.abs() @ again,
        "absolute values of rotation": turned.abs(),
        "tanh of rotation": torch.tanh(2 * turned),
        "network of rectifiers": torch.relu(x @ network[0]) @ network[1],
        "scales": x * torch.logspace(-3, 3, width),
        "scales of rotation": turned * torch.logspace(-3, 3, width),
        "gain": turned * (3 * torch.randn(len(x), 1, generator=draw)).exp(),
        "trace in low variance": turned * (0.02 * low) + noise * (1 - low + 1e-4),
        "pseudo-voices": torch.randn(int(speakers.max()) + 1, width, generator=draw)[speakers]
        + 0.5 * noise,
    }


def data_sets():
    """Yield name, original rows, protected rows and speakers."""
    bundled = demo_voices()
    for name in ("B2", "B2r0", "B2r1", "B2u"):
        yield f"bundled {name}", bundled.original, bundled.protected[name], bundled.speakers
    for size, arguments in SIZES.items():
        x, speakers, draw = fading_voices(**arguments, dtype=torch.float32)
        for name, protected in gaussian_systems(x, speakers, draw).items():
            yield size + name, x, protected, speakers
    for speakers, utterances, width in ((12, 4, 96), (40, 10, 48)):
        draw, names = (
            torch.Generator().manual_seed(0),
            torch.arange(speakers).repeat_interleave(utterances),
        )
        own, count = torch.randn(speakers, width, generator=draw)[names], (len(names), width)
        noise = torch.logspace(-2, 2, width)[torch.randperm(width, generator=draw)] * torch.randn(
            count, generator=draw
        )
        original = own + 0.3 * torch.randn(count, generator=draw)
        turn = torch.linalg.qr(torch.randn(width, width, generator=draw))[0]
        yield f"noise by dimension, {speakers} speakers", original, own + noise, names
        yield (
            f"rotation, noise by dimension, {speakers} speakers",
            original,
            own @ turn + noise,
            names,
        )


def test_every_attack_of_the_battery_is_needed():
    """Print D_ECE by attack, and what the fused attacker finds with and without each.

    The largest is starred.
    """
    names = [attack.name for attack in STANDARD]
    most_lost = dict.fromkeys(names, (0.0, ""))
    print("\n" + " " * 45 + " ".join(f"{name[:9]:>9s}" for name in names) + "     fused")
    for data_set, original, protected, speakers in data_sets():
        conditions = [CONDITIONS["OP"], CONDITIONS["PP"]]
        data = deduplicate_and_index(pack_utterances(original, protected, speakers))
        whole = FusedAttacker(data, STANDARD, conditions)
        for condition in conditions:
            result = whole.result(condition)
            fused = float(result.measures["d_ece_strongest"])
            values = {attack.name: attack.d_ece for attack in result.attacks}
            best = max(values.values())
            row = []
            for name in names:
                value = values.get(name, math.nan)
                row.append(f"{value:8.3f}{'*' if value == best else ' '}")
            print(f"{condition.name} {data_set:41s} {' '.join(row)} {fused:8.3f}", flush=True)
            for attack in STANDARD:
                others = [other for other in STANDARD if other is not attack]
                without = FusedAttacker(data, others, [condition]).result(condition)
                lost = fused - float(without.measures["d_ece_strongest"])
                most_lost[attack.name] = max(
                    most_lost[attack.name], (lost, f"{condition.name} {data_set}")
                )
    for name, (lost, data_set) in most_lost.items():
        print(f"without {name}: {lost:.3f} bits less of {data_set}")
