"""Turn a command line into checked, typed configurations, one for each cell."""

from src.config.run_config import CONF, Config, load
from src.config.schema import ConfigError

__all__ = ["CONF", "Config", "ConfigError", "load"]
