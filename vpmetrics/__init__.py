"""How well a voice anonymiser hides who is speaking: metrics for PyTorch, in the manner of TorchMetrics."""

from vpmetrics.verification import Cllr, EqualErrorRate, Linkability, MinCllr
from vpmetrics.zebra import CalibrationDistortion, ZebraDisclosure

__all__ = [
    "CalibrationDistortion",
    "Cllr",
    "EqualErrorRate",
    "Linkability",
    "MinCllr",
    "ZebraDisclosure",
]
__version__ = "0.1.0"
