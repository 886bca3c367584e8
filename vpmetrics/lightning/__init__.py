r"""Privacy in the training loop: measured in every validation, and weighed when a checkpoint is chosen.

.. code-block:: python

    trainer = Trainer(
        callbacks=[
            PrivacyMonitor(prefix="val/privacy"),
            PrivacyCheckpoint(privacy="val/privacy/op_d_ece_strongest", budget=0.05, utility="val/loss"),
        ],
    )

``validation_step`` returns a dictionary with ``original``, ``protected`` and ``speakers``; that is all. The Trainer may
be that of ``pytorch_lightning`` or that of ``lightning.pytorch``.

Example:
    >>> PrivacyMonitor(metrics=["deid", "op_d_ece"]).logged_names
    ('val/privacy/deid', 'val/privacy/op_d_ece')
"""

from vpmetrics.lightning.checkpoint import PrivacyCheckpoint
from vpmetrics.lightning.monitor import PrivacyMonitor
from vpmetrics.lightning.pareto import ParetoPoint

__all__ = ["ParetoPoint", "PrivacyCheckpoint", "PrivacyMonitor"]
