"""How well a voice anonymiser hides who is speaking: metrics for PyTorch, in the manner of TorchMetrics."""

from vpmetrics.local import LocalInformationDisclosure
from vpmetrics.rank import SimilarityRankDisclosure
from vpmetrics.similarity import DeIdentification, VoiceDistinctiveness, VoiceSimilarityMatrix
from vpmetrics.suite import VoicePrivacy
from vpmetrics.trials import EmbeddingTrials
from vpmetrics.verification import Cllr, EqualErrorRate, Linkability, MinCllr
from vpmetrics.zebra import CalibrationDistortion, ZebraDisclosure

__all__ = [
    "CalibrationDistortion",
    "Cllr",
    "DeIdentification",
    "EmbeddingTrials",
    "EqualErrorRate",
    "Linkability",
    "LocalInformationDisclosure",
    "MinCllr",
    "SimilarityRankDisclosure",
    "VoiceDistinctiveness",
    "VoicePrivacy",
    "VoiceSimilarityMatrix",
    "ZebraDisclosure",
]
__version__ = "0.1.0"
