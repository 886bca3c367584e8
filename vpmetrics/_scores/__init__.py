"""From blocks of scores to counts, calibration, measures and intervals."""
