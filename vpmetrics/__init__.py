"""How well a voice anonymiser hides who is speaking.

Metrics for PyTorch, in the manner of TorchMetrics.
"""

from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vpmetrics._scores.registry import scalar
    from vpmetrics._util.versions import show_versions
    from vpmetrics._utterances.utterances import encode_labels
    from vpmetrics.attributes import AttributeDisclosure
    from vpmetrics.local import LocalInformationDisclosure
    from vpmetrics.rank import SimilarityRankDisclosure
    from vpmetrics.reidentification import ReidentificationRate, SinglingOut
    from vpmetrics.report.difference import compare_reports
    from vpmetrics.similarity import DeIdentification, VoiceDistinctiveness, VoiceSimilarityMatrix
    from vpmetrics.strongest import StrongestAttack
    from vpmetrics.suite import VoicePrivacy
    from vpmetrics.verification import Cllr, EqualErrorRate, Linkability, MinCllr, TPRAtFPR
    from vpmetrics.zebra import CalibrationDistortion, ZebraDisclosure

__all__ = [
    "AttributeDisclosure",
    "CalibrationDistortion",
    "Cllr",
    "DeIdentification",
    "EqualErrorRate",
    "Linkability",
    "LocalInformationDisclosure",
    "MinCllr",
    "ReidentificationRate",
    "SimilarityRankDisclosure",
    "SinglingOut",
    "StrongestAttack",
    "TPRAtFPR",
    "VoiceDistinctiveness",
    "VoicePrivacy",
    "VoiceSimilarityMatrix",
    "ZebraDisclosure",
    "compare_reports",
    "encode_labels",
    "scalar",
    "show_versions",
]
__version__ = "0.1.0"


# Torch and torchmetrics take seconds to import: they wait until a metric is asked for, as `--help`
# never does.
def __getattr__(name: str) -> Any:
    """Return a metric or a module of the package, imported on first use."""
    if name in __all__:
        classes = [
            module.name
            for module in iter_modules(__path__)
            if not (module.ispkg or module.name[0] == "_")
        ]
        for home in (
            "report.difference",
            "_util.versions",
            "_scores.registry",
            "_utterances.utterances",
            *classes,
        ):
            namespace = vars(import_module(f"vpmetrics.{home}"))
            globals().update(
                {metric: namespace[metric] for metric in __all__ if metric in namespace}
            )
        return globals()[name]
    if not name.startswith("_") and find_spec(f"vpmetrics.{name}"):
        return import_module(f"vpmetrics.{name}")
    raise AttributeError(f"module 'vpmetrics' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
