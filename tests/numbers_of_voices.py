"""The numbers that users may rely on: some sixty values on the bundled voices.

``python tests/numbers_of_voices.py`` writes them to ``tests/numbers_of_voices.json``. Do so only
where a change of a number is intended, and name it in the CHANGELOG: the old value, the new one,
and the reason.
"""

import json
from pathlib import Path

from vpmetrics import VoicePrivacy
from vpmetrics.data import demo_voices

FILE = Path(__file__).with_suffix(".json")
SYSTEMS = ("B2", "B2u")


def measure() -> dict[str, float]:
    """Return the headline of two bundled systems, by system and key; NaN is left out."""
    voices = demo_voices()
    numbers: dict[str, float] = {}
    for system in SYSTEMS:
        metric = VoicePrivacy()
        metric.update(voices.original, voices.protected[system], voices.speakers)
        for key, value in metric.compute().items():
            if value == value:
                numbers[f"{system}/{key}"] = round(float(value), 6)
    return numbers


if __name__ == "__main__":
    FILE.write_text(json.dumps(measure(), indent=1) + "\n", encoding="utf-8")
