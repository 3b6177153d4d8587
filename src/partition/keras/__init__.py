"""Trace, measure and cut Keras models."""
