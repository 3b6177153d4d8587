"""Build EAST, a text detector: a trunk, a branch that merges its features, and heads."""

from src.models.torch.east.model import build

__all__ = ["build"]
