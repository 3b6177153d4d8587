"""Read datasets in the formats in which they are published."""
