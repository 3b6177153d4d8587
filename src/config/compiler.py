"""Check that a model can be compiled on this machine."""

from __future__ import annotations

import os
import shutil

from src.config.mistakes import CannotRunHere
from src.config.run_config import Config


def check_compiler(config: Config) -> None:
    """Raise `CannotRunHere` where a model is to be compiled and torch finds no C++ compiler."""
    compiler = os.environ.get("CXX", "g++")
    if config.strategy.get("compile", False) and shutil.which(compiler) is None:
        raise CannotRunHere(
            f"strategy.compile=true: torch.compile needs a C++ compiler, and there is no {compiler} here; "
            "install one, name yours by the variable CXX, or choose strategy.compile=false"
        )
