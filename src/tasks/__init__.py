"""What is learned of a sample: a task's loss and metrics, by framework."""
