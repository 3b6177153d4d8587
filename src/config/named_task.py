"""Find the task that a dataset names, which Hydra composes unless the command line has another one.

`conf/config.yaml` asks for it in its list of defaults, by the resolver `task_of`, which is registered here.
"""

from __future__ import annotations

from pathlib import Path

from hydra.core.config_search_path import SearchPathElement
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from src.config import choices
from src.config.mistakes import ConfigError
from src.config.run_config import DEFAULT_TASK

SCHEME = "file://"


def task_of(dataset: str) -> str:
    """Return the name of the task that a dataset's YAML file names, or that of classification.

    A file that isn't there, or can't be read, is reported by those who compose the dataset.
    """
    try:
        named = choices.read(choices.find("dataset", dataset, _folders())).get("task", DEFAULT_TASK)
    except ConfigError:
        return DEFAULT_TASK
    return str(named)


def add_folder(folder: Path) -> None:
    """Add a folder of the user's own choices to those that are searched; Hydra must be initialized."""
    elements = GlobalHydra.instance().config_loader().get_search_path().get_path()
    # Hydra wants its own schema to be the last.
    elements.insert(len(elements) - 1, SearchPathElement("command-line", f"{SCHEME}{folder.absolute()}"))


def _folders() -> list[Path]:
    """Return the folders of choices that Hydra searches."""
    elements = GlobalHydra.instance().config_loader().get_search_path().get_path()
    paths = [str(element.path) for element in elements]
    return [Path(path.removeprefix(SCHEME)) for path in paths if path.startswith(SCHEME)]


OmegaConf.register_new_resolver("task_of", task_of, replace=True)
