"""Predict steps of a user's own model on described devices, from the operations of a step without data."""
