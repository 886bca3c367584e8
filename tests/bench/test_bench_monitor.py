"""What a monitor adds to a validation, beside the metric and with its figures.

Memory over a long training.
"""

import pytest
import pytorch_lightning as pl
import torch
from samples import people
from torch.utils.data import DataLoader, TensorDataset
from training import anonymiser, fit, tensorboard

from bench.timing import afresh, in_turns, ratio, report, run_script
from vpmetrics import VoicePrivacy
from vpmetrics.lightning import PrivacyMonitor

pytestmark = pytest.mark.bench


@pytest.mark.parametrize("attacks", [None, "standard"])
@pytest.mark.parametrize(("speakers", "each"), [(40, 10), (40, 50)])
def test_overhead_of_a_validation_with_monitor(speakers, each, attacks, tmp_path):
    columns, epochs = people(number=speakers, each=each, width=192, dtype=torch.float32), 6
    monitor = PrivacyMonitor(suite=VoicePrivacy(attacks=attacks), figures_every_n_epochs=1)
    options = {"logger": tensorboard(pl, tmp_path), "profiler": "simple"}
    trainer = fit(
        pl, [monitor], anonymiser(pl), DataLoader(TensorDataset(*columns), 128), epochs, **options
    )

    def spent(action):
        durations = trainer.profiler.recorded_durations
        return next(
            values
            for name, values in durations.items()
            if "PrivacyMonitor" in name and name.endswith(action)
        )

    compute, figures = spent("PrivacyMonitor.compute"), spent("PrivacyMonitor.figures")
    ends = spent("on_validation_epoch_end")[-epochs:]  # the sanity check is before
    hooks = sum(spent("on_validation_batch_end")) + sum(ends) - sum(compute) - sum(figures)
    suite = VoicePrivacy(attacks=attacks)
    suite.update(*columns)
    alone = in_turns({"suite": lambda: afresh(suite)}, repeat=3)["suite"]
    label = f"{len(columns[2])} x {speakers}, attacks {attacks}"
    for name, (first, *rest) in {"compute": compute, "figures": figures}.items():
        print(f"\n{label}: {name} {min(rest):.3f} s (first {first:.3f})", end="")
        assert first < 1.5 * max(rest)  # the first epoch takes no longer than others
    report(
        f"{label}: monitor without figures",
        min(compute[1:]) + hooks / epochs,
        "the suite alone",
        alone,
    )


@pytest.mark.parametrize("attacks", [None, "standard"])
@pytest.mark.parametrize("name", ["deid", "op_d_ece", "op_max_d"])
def test_a_choice_of_scalars_saves_time(name, attacks):
    some, every = VoicePrivacy(attacks=attacks, metrics=[name]), VoicePrivacy(attacks=attacks)
    for suite in (some, every):
        suite.update(*people(number=40, each=50, width=192, dtype=torch.float32))
    assert (
        ratio(
            f"{name}, attacks {attacks}",
            lambda: afresh(some),
            "all",
            lambda: afresh(every),
            repeat=3,
        )
        < 0.7
    )


TRAINING = """
import tempfile, warnings
import pytorch_lightning as pl
from leaking_voices import loader
from training import anonymiser, fit, tensorboard
from vpmetrics.lightning import PrivacyCheckpoint, PrivacyMonitor

class Watch(pl.Callback):
    def on_train_epoch_end(self, trainer, module):
        if trainer.current_epoch + 1 in (20, 60, 100, 140, 200):
            print(megabytes("VmRSS"))

warnings.simplefilter("ignore")
with tempfile.TemporaryDirectory() as folder:
    monitor = PrivacyMonitor(figures_every_n_epochs=5)
    callbacks = [monitor, PrivacyCheckpoint(dirpath=folder), Watch()]
    logger = tensorboard(pl, folder)
    fit(pl, callbacks, anonymiser(pl), loader(32, speakers=8), epochs=200, logger=logger)
"""


def test_memory_is_flat_over_two_hundred_epochs_with_figures_and_attacks():
    megabytes = [
        float(line) for line in run_script(TRAINING).split("\n") if line.replace(".", "").isdigit()
    ]
    print(
        "\nresident after 20, 60, 100, 140, 200 epochs, MB:", *(round(each) for each in megabytes)
    )
    assert len(megabytes) == 5
    # 36 sets of figures, 2 MB of pixels each figure, are not among what stays.
    assert megabytes[-1] - megabytes[0] < 25
