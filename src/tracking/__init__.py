"""Track trainings in MLflow: the parent opens and closes an MLflow run for each, and rank 0 logs into it."""
