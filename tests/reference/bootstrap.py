"""Measures of trials whose speakers were drawn: every drawn speaker's trials repeated, one by one."""

import numpy as np


def repeated(preds, target, speakers, drawn):
    """Scores and labels of the trials of the speakers ``drawn``, some of them several times.

    Every copy of a speaker brings that speaker's target trials. Two copies bring the non-target trials of their two
    speakers; two copies of one speaker have none.
    """
    scores, labels = [], []
    trials = list(zip(preds, target, *speakers, strict=True))
    for p, one in enumerate(drawn):
        for q, other in enumerate(drawn):
            met = [
                (score, is_target)
                for score, is_target, enrol, probe in trials
                if (enrol, probe) == (one, other) and (is_target if p == q else one != other)
            ]
            scores += [score for score, _ in met]
            labels += [is_target for _, is_target in met]
    return np.array(scores), np.array(labels)
