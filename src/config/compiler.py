"""Check that a model can be compiled on this machine."""

from __future__ import annotations

import os
import shutil

from src.config.run_config import Config
from src.config.schema import ConfigError


def check_compiler(config: Config) -> None:
    """Raise `ConfigError` where a model is to be compiled and there is no C++ compiler, which torch needs."""
    compiler = os.environ.get("CXX", "g++")
    if config.strategy.get("compile", False) and shutil.which(compiler) is None:
        raise ConfigError(
            f"strategy.compile=true: torch.compile needs a C++ compiler, and there is no {compiler} here; "
            "install one, name yours by the variable CXX, or choose strategy.compile=false"
        )
