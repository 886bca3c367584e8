"""Names of what a Trainer logs: which there are, and which belong together."""

from __future__ import annotations

from typing import Any

from vpmetrics._names import without_loader


def reversed_twin(name: str) -> str:
    """The name of the same disclosure to who takes unlikeness for likeness.

    Example:
        >>> reversed_twin("val/privacy/op_d_ece/dataloader_idx_1")
        'val/privacy/op_d_ece_reversed/dataloader_idx_1'
    """
    return with_end(name, "_reversed")


def with_end(name: str, end: str) -> str:
    """The name of an end of the interval of what is logged.

    Example:
        >>> with_end("val/privacy/op_d_ece/dataloader_idx_1", "_high")
        'val/privacy/op_d_ece_high/dataloader_idx_1'
    """
    plain = without_loader(name)
    return f"{plain}{end}{name.removeprefix(plain)}"


def logged_names(trainer: Any) -> set[str]:
    """All that has been logged, also by a sanity check, whose values per loader the Trainer soon forgets."""
    results = getattr(trainer, "_results", None) or {}
    metas = [metric.meta for metric in results.values() if hasattr(metric, "meta")]
    suffixes = [
        f"/dataloader_idx_{meta.dataloader_idx}" if meta.add_dataloader_idx and meta.dataloader_idx is not None else ""
        for meta in metas
    ]
    return {*trainer.callback_metrics, *(meta.name + suffix for meta, suffix in zip(metas, suffixes, strict=True))}
