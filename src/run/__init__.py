"""Name and handle a run's directory, its files, and the variables by which its processes communicate."""
