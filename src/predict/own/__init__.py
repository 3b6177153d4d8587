"""Predict steps of runs on one's own machine from a profile of what they cost, and from other runs."""
