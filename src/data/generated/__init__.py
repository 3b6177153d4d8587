"""Generators of data, one a file."""
