"""Write stand-ins of datasets, in the formats in which the originals are published."""
