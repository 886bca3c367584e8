"""Draw the picture of a training in the README, from the code of its training section.

``python notebooks/pictures/training.py``
"""

import re
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from matplotlib.figure import Figure

from vpmetrics.plotting.axes import COLOURS

FOLDER = Path(__file__).parent
README = FOLDER.parents[1] / "README.md"
CURVES = {
    "disclosure": "disclosure (strongest attacker)",
    "op_d_ece": "OP, cosine",
    "across_d_ece": "across sessions, cosine",
    "within_d_ece": "within a session, cosine",
}


def run_readme(folder):
    """Run the Python of the README up to the end of its training, and return its names."""
    names = {"__name__": "__main__"}
    code_blocks = re.findall(r"^```python\n(.*?)^```$", README.read_text(), flags=re.MULTILINE | re.DOTALL)
    for code in code_blocks:
        # Logs and checkpoints are not kept.
        exec(code.replace("callbacks=[", f"default_root_dir={folder!r}, callbacks=["), names)
        if "trainer.fit(" in code:
            return names
    raise ValueError(f"Expected a training in {README}, but found none.")


def draw(names):
    """Return a figure of disclosures over the epochs, and of disclosure over distortion."""
    (untrained,) = names["untrained"]
    logged = {name.rpartition("/")[2]: value for name, value in untrained.items()}
    rows = [{**logged, "epoch": -1}, *names["monitor"].history]
    epochs = [row["epoch"] + 1 for row in rows]
    best = names["best"]
    figure = Figure(figsize=(11, 3.4), layout="constrained", dpi=130)
    privacy, trade_off = figure.subplots(1, 2, width_ratios=(1.5, 1))
    for (key, label), colour in zip(CURVES.items(), (COLOURS[1], COLOURS[0], COLOURS[3], COLOURS[2]), strict=True):
        privacy.plot(epochs, [row[key] for row in rows], "o-", color=colour, markersize=4, label=label)
    privacy.axhline(best.budget, color="black", linewidth=1, linestyle="--", label=f"budget, {best.budget:g} bit")
    privacy.set(xlabel="epoch", ylabel="disclosure, bit", ylim=(0, 0.75), title="12 speakers held out of the training")
    privacy.legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    points = [(logged["distortion"], logged["disclosure"]), *((row.utility, row.privacy) for row in best.history)]
    trade_off.plot(*zip(*points, strict=True), "o-", color="0.6", markersize=5)
    trade_off.annotate("untrained", points[0], textcoords="offset points", xytext=(8, 0))
    if best.chosen is not None:
        chosen = (best.chosen.utility, best.chosen.privacy)
        trade_off.plot(*chosen, "*", color=COLOURS[1], markersize=16, label=f"chosen: epoch {best.chosen.epoch + 1}")
    trade_off.axhline(best.budget, color="black", linewidth=1, linestyle="--", label="budget")
    trade_off.set(xlabel="distortion (1 − cosine)", ylabel="disclosure, bit", ylim=(0, 0.75), title="What it costs")
    trade_off.legend(frameon=False, fontsize="small")
    for ax in (privacy, trade_off):
        ax.grid(alpha=0.3)
    return figure


def main():
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with TemporaryDirectory() as folder:
        names = run_readme(folder)
    for row in names["best"].history:
        print(row)
    draw(names).savefig(FOLDER / "training.png")


if __name__ == "__main__":
    main()
