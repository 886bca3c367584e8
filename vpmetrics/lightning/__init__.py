r"""Privacy in the training loop.

Measured in every validation, and weighed when a checkpoint is chosen.

.. code-block:: python

    trainer = Trainer(
        callbacks=[
            PrivacyMonitor(prefix="val/privacy"),
            PrivacyCheckpoint(privacy="val/privacy/disclosure", budget=0.05, utility="val/loss"),
        ],
    )

``validation_step`` returns a dictionary with ``original``, ``protected`` and ``speakers``; that is
all. The Trainer may be that of ``pytorch_lightning`` or that of ``lightning.pytorch``.

The ``Trainer`` of Hugging Face's transformers needs no callback. Let the model return ``(original,
protected)`` as its logits, name the speakers' column in ``label_names``, and pass this function:

.. code-block:: python

    def compute_metrics(prediction):
        suite = VoicePrivacy()
        suite.update(*prediction.predictions, prediction.label_ids)
        return {key: value.item() for key, value in suite.compute().items()}

Example:
    >>> PrivacyMonitor(metrics=["deid", "op_d_ece"]).logged_names
    ('val/privacy/deid', 'val/privacy_conditions/op_d_ece')
"""

from vpmetrics.lightning.checkpoint import PrivacyCheckpoint, Validation
from vpmetrics.lightning.monitor import PrivacyMonitor

__all__ = ["PrivacyCheckpoint", "PrivacyMonitor", "Validation"]
