"""The names by which the project's runs are found in an MLflow store, and its own store on disk."""

EXPERIMENT = "scaleguide"
# The tag holds a run's `RunNote.key`.
KEY_TAG = "scaleguide.key"
# The project's own store, and the folder of all files beside an sqlite store.
DATABASE, ARTIFACTS = "mlflow.db", "mlartifacts"
