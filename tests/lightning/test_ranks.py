"""Several ranks with and without rows, with everything switched on.

Equal numbers, no hang, and errors on all.
"""

import json
import math

import pytest
from training import run_script

SCRIPT = """
    import json, os, sys, warnings
    from datetime import timedelta
    from pathlib import Path

    import pytorch_lightning as pl
    import torch
    from pytorch_lightning.plugins.environments import LightningEnvironment
    from pytorch_lightning.strategies import DDPStrategy
    from torch.utils.data import DataLoader, TensorDataset

    from leaking_voices import protect, voices
    from training import QUIET, anonymiser, tensorboard
    from vpmetrics.attacks import Plain, RidgeToOriginal
    from vpmetrics.lightning import PrivacyCheckpoint, PrivacyMonitor
    from vpmetrics.report import figures
    from vpmetrics.suite import VoicePrivacy

    case = sys.argv[2]


    class Environment(LightningEnvironment):
        # Each rank is a process of its own, which a file brings together.
        creates_processes_externally = True
        def __init__(self, rank, ranks): super().__init__(); self.rank, self.ranks = rank, ranks
        def world_size(self): return self.ranks
        def global_rank(self): return self.rank
        def local_rank(self): return self.rank
        def node_rank(self): return 0


    class FileStrategy(DDPStrategy):
        def __init__(self, folder, rank, ranks):
            super().__init__(cluster_environment=Environment(rank, ranks))
            self.folder, self.ranks = folder, ranks

        def setup_distributed(self):
            torch.distributed.init_process_group(
                "gloo",
                init_method=f"file://{self.folder}/rendezvous",
                rank=self.global_rank,
                world_size=self.ranks,
                timeout=timedelta(seconds=60),
            )


    def is_mine(rank, ranks, rows):
        # In the case "rows" ranks share utterances unevenly; otherwise only rank 0 has any.
        if case == "rows":
            return rows % (ranks + 1) % ranks == rank
        return torch.full_like(rows, rank == 0).bool()


    def train_on_rank(folder, rank, ranks):
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        figures.FIGURES = tuple(kind for kind in figures.FIGURES if kind.key == "quadrants")
        original, noise, speakers = voices(speakers=8, utterances=4)
        columns = [original, noise, speakers, torch.arange(32) // 8 % 2, torch.arange(32)]
        data = TensorDataset(*columns)
        seen = []

        def step(self, batch, _, dataloader_idx=0):
            x, n, s, session, row = batch
            mine = is_mine(rank, ranks, row)
            self.log("val/loss", 1.0)
            if case == "error" and rank == 1 and not self.trainer.sanity_checking:
                narrow = x[:, :3]
                return {"x": x, "y": narrow, "who": s, "session": session, "row": row, "sex": s % 2}
            if not mine.any():
                return None
            kept = [column[mine] for column in (x, protect(x, n, 0.6), s, session, row, s % 2)]
            return dict(zip(("x", "y", "who", "session", "row", "sex"), kept))

        def train(self, batch, _):
            loss = self.layer(batch[0]).square().mean()
            x, n, s = batch[:3]
            if case == "training error" and rank == 1:
                return {"loss": loss, "original": x, "protected": x[:, :3], "speakers": s}
            return {"loss": loss, "original": x, "protected": protect(x, n, 0.6), "speakers": s}

        def read(outputs):
            if outputs is None:
                return None
            if "x" not in outputs:
                return {name: outputs[name] for name in ("original", "protected", "speakers")}
            names = {
                "original": "x",
                "protected": "y",
                "speakers": "who",
                "sessions": "session",
                "utterances": "row",
            }
            return {argument: outputs[name] for argument, name in names.items()}

        attacks = [Plain(), RidgeToOriginal()]
        suite = VoicePrivacy(attacks=attacks, metrics="all", intervals=0.9, conversations=3)
        monitor = PrivacyMonitor(
            keys=read, suite=suite,
            watch_training="training" in case, attributes={"sex": "sex"},
            figures_every_n_epochs=1, report_every_n_epochs=2,
        )
        checkpoint = PrivacyCheckpoint(budget=0.72, dirpath=folder / "kept", confidence=0.9)
        trainer = pl.Trainer(
            strategy=FileStrategy(folder, rank, ranks), devices=ranks, max_epochs=2,
            callbacks=[monitor, checkpoint],
            logger=tensorboard(pl, folder, version=0),
            use_distributed_sampler=False,
            num_sanity_val_steps=1, **QUIET,
        )
        module = anonymiser(pl, validation_step=step, training_step=train)
        loaders = DataLoader(data, 32)
        if case == "loaders":
            loaders = [DataLoader(data, 32), DataLoader(data, 32)]
            trainer.callbacks.remove(checkpoint)
        error = None
        try:
            trainer.fit(module, DataLoader(data, 8), loaders)
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
        best = Path(checkpoint.best_model_path).name
        (folder / f"{rank}.json").write_text(json.dumps([error, monitor.history, best]))
        torch.distributed.destroy_process_group()


    def train_on_ranks(folder, ranks):
        folder.mkdir()
        children = []
        for rank in range(ranks):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    train_on_rank(folder, rank, ranks)
                    code = 0
                finally:
                    os._exit(code)
            children.append(child)
        assert [os.waitpid(child, 0)[1] for child in children] == [0] * ranks


    if __name__ == "__main__":
        for ranks in map(int, sys.argv[3:]):
            train_on_ranks(Path(sys.argv[1]) / str(ranks), ranks)
"""


def fit_on_ranks(folder, case, *numbers_of_ranks):
    """Return the error, the history and the best checkpoint of every rank.

    For each number of ranks.
    """
    run_script(folder, SCRIPT, folder, case, *numbers_of_ranks, timeout=500)
    results = []
    for ranks in numbers_of_ranks:
        files = [folder / str(ranks) / f"{rank}.json" for rank in range(ranks)]
        results.append([json.loads(file.read_text()) for file in files])
    return results


def strip_time(history):
    rows = [{key: value for key, value in row.items() if key != "seconds"} for row in history]
    return [
        {key: -1.0 if math.isnan(value) else value for key, value in row.items()} for row in rows
    ]


def with_slow(cases):
    """Return cases as parameters, of which only the first is not slow."""
    first, *others = cases
    return [first, *(pytest.param(*case, marks=pytest.mark.slow) for case in others)]


@pytest.mark.parametrize(
    ("case", "ranks"),
    with_slow(
        [
            ("one rank has them all", (1, 2)),
            ("one rank has them all", (1, 3)),
            ("rows", (1, 2, 3)),
            ("loaders", (1, 2, 3)),
            ("training", (1, 2, 3)),
        ]
    ),
)
def test_every_rank_logs_the_numbers_of_all_whatever_it_has_seen(tmp_path, case, ranks):
    of_one, *of_several = fit_on_ranks(tmp_path, case, *ranks)
    error, expected, _ = of_one[0]
    assert error is None
    assert len(expected) == (4 if case == "loaders" else 2)
    assert {"sex_disclosure", "across_d_ece_strongest_high", "disclosure"} <= set(expected[-1])
    for results in of_several:
        assert [error for error, _, _ in results] == [None] * len(results)
        assert len({best for _, _, best in results}) == 1
        for _, history, _ in results:
            assert len(history) == len(expected)
            if case == "training":  # more ranks have observed the training data more often
                continue
            for row, row_of_one in zip(strip_time(history), strip_time(expected), strict=True):
                assert row == pytest.approx(row_of_one, abs=1e-5, rel=1e-4)


@pytest.mark.parametrize(
    ("case", "ranks"), with_slow([("error", (2,)), ("error", (3,)), ("training error", (2, 3))])
)
def test_an_error_of_one_rank_is_raised_on_all(tmp_path, case, ranks):
    step = "validation_step" if case == "error" else "training_step"
    for results in fit_on_ranks(tmp_path, case, *ranks):
        errors = [error for error, _, _ in results]
        assert f"cannot use what `{step}` returned. Expected `protected` to have shape" in errors[1]
        quoted = f"RankError: Rank 1 of {len(errors)} raised ValueError: PrivacyMonitor cannot use"
        assert all(errors[rank].startswith(quoted) for rank in range(len(errors)) if rank != 1)
