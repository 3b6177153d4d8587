"""Trace, measure and cut torch models."""
