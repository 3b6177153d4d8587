"""Write stand-ins for datasets that can't be reached, in the format in which the originals are published."""
