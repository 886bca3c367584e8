"""The machinery behind the public classes and functions."""
