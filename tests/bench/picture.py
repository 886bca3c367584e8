"""The picture at the top of the README, from the log of a demo: curves over the training, and heat maps along it.

python tests/bench/picture.py vpmetrics-demo-tensorboard notebooks/pictures/training.png
"""

import io
import sys
from pathlib import Path

import matplotlib.image
from matplotlib.figure import Figure
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from vpmetrics.plotting.axes import COLOURS

CURVES = {
    "op_d_ece_strongest": "OP, strongest attack",
    "op_d_ece": "OP, cosine",
    "within_d_ece": "within a session, cosine",
    "across_d_ece": "across sessions, cosine",
}


def main() -> None:
    logdir, picture = sys.argv[1:]
    events = EventAccumulator(str(next(Path(logdir).rglob("events*")).parent), size_guidance={"images": 0}).Reload()
    maps = events.Images("val_figures/privacy/quadrants")
    figure = Figure(figsize=(11, 3.3), layout="constrained", dpi=130)
    curves, first, last = figure.subplots(1, 3, width_ratios=(1.25, 1, 1))
    for (key, label), colour in zip(CURVES.items(), COLOURS, strict=False):
        rows = events.Scalars(f"val/privacy_conditions/{key}")
        curves.plot([row.step for row in rows], [row.value for row in rows], color=colour, label=label)
    curves.set(xlabel="training step", ylim=(0, 0.75), ylabel="$D_{ECE}$, bit", title="speakers held out of training")
    curves.legend(frameon=False, loc="center right")
    curves.grid(alpha=0.3)
    for ax, event in ((first, maps[0]), (last, maps[-1])):
        card = matplotlib.image.imread(io.BytesIO(event.encoded_image_string))
        ax.imshow(card)
        ax.set_title(f"voice similarity after step {event.step}")
        ax.axis("off")
    figure.savefig(picture)


if __name__ == "__main__":
    main()
