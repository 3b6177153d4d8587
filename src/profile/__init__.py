"""Measure what a machine gives, apart from any training: `python -m src.profile`."""
