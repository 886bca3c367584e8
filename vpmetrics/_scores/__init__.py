"""The score axis: counts per step of it, and the calibration they have."""
