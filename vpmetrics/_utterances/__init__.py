"""Utterances with their labels, and the conditions they are compared in."""
