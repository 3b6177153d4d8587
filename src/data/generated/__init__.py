"""Write stand-ins for datasets that a machine can't reach, in their official formats."""
