"""What must work after ``pip install vpmetrics`` without extras."""

from importlib.metadata import version
from importlib.util import find_spec

import torch

import vpmetrics
from vpmetrics import VoicePrivacy, ZebraDisclosure
from vpmetrics.data import demo_voices

assert vpmetrics.__version__ == version("vpmetrics"), vpmetrics.__version__
assert find_spec("matplotlib") is None, "this environment has more than the core"

zebra = ZebraDisclosure()
zebra.update(torch.tensor([2.0, 1.5, 0.1, -0.3, 0.2]), torch.tensor([1, 1, 0, 0, 0]))
assert 0.7 < float(zebra.compute()["d_ece"]) < 0.73

voices = demo_voices()
suite = VoicePrivacy()
suite.update(voices.original, voices.protected["B2"], voices.speakers)
assert 0.5 < float(suite.compute()["disclosure"]) < 0.73
print(suite.report())
