"""Define tasks, by framework: what is learned of a sample, its loss and its metrics."""
