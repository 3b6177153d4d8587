"""Supervise one training: start its processes, watch them, start them again, and say why it failed."""
