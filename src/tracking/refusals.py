"""Say what is wrong with an MLflow store: that it refuses is another matter than that it can't be reached."""

from __future__ import annotations

from src.config.tracking_address import redacted

REASON_LENGTH = 200
# MLflow's codes, by what is said.
CREDENTIALS, ABSENT = (
    ("UNAUTHENTICATED", "CUSTOMER_UNAUTHORIZED", "PERMISSION_DENIED"),
    ("ENDPOINT_NOT_FOUND",),
)
# The service may do at another time what it doesn't now.
PASSING = ("INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED", "DEADLINE_EXCEEDED")


class StoreRefused(Exception):
    """Says why a store can't be used as it is; the text follows `the MLflow store `."""


class ExperimentDeleted(StoreRefused):
    """Says that somebody has deleted the experiment of all runs, and how it is restored."""


def is_refusal(error: Exception) -> bool:
    """Return whether the store has answered, and would answer the same to another attempt."""
    code = getattr(error, "error_code", None)
    return isinstance(error, StoreRefused) or (code is not None and code not in PASSING)


def describe(error: Exception) -> str:
    """Return what an error says of the store, in one line that follows `the MLflow store `."""
    if isinstance(error, StoreRefused):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        # The driver of a database.
        return f"needs the Python package {error.name}, which isn't installed here"
    reason = redacted((str(error).strip().splitlines() or [type(error).__name__])[0])[:REASON_LENGTH]
    code = getattr(error, "error_code", None)
    if code in CREDENTIALS:
        return (
            "refuses: set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN "
            f"({reason})"
        )
    if code in ABSENT or "not in a valid JSON format" in str(error):
        return (
            "isn't there: what answers at MLFLOW_TRACKING_URI is no MLflow server, or another path of it "
            f"({reason})"
        )
    return f"refuses ({reason})" if is_refusal(error) else f"can't be reached ({reason})"
