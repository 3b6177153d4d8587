"""Start a run's processes, watch them, start them again, and leave none behind."""
