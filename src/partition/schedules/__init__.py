"""A pipeline's schedules: which rank does what in which order, and what that costs."""
