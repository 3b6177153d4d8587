"""Recommend how to train: by what was measured, or on devices that nobody has, by what is predicted."""
