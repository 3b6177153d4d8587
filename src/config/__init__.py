"""Turn a command line into checked, typed configurations, one for each cell."""

from src.config.mistakes import CannotRunHere, ConfigError, OwnCodeError
from src.config.run_config import CONF, Config, load

__all__ = ["CONF", "CannotRunHere", "Config", "ConfigError", "OwnCodeError", "load"]
