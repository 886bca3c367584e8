"""The base classes of all metrics."""
