"""Turn a command line into checked, typed configurations, one for each cell."""

from src.config.run_config import CONF, Config, load
from src.config.schema import CannotRunHere, ConfigError, OwnCodeError

__all__ = ["CONF", "CannotRunHere", "Config", "ConfigError", "OwnCodeError", "load"]
