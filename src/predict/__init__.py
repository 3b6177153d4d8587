"""Predict the seconds of a step, and memory, of configurations that nobody has run here."""
