"""The Lightning callbacks, one file each, and what they share."""
