"""Track trainings in MLflow: a thread of the parent sends what the ranks have recorded."""
