"""Register the OmegaConf resolvers of a study: `cells`, of its grid, and `folders`, of its datasets.

DVC imports this module while it composes `conf/study.yaml` (`hydra.plugins_path` in .dvc/config). What the
resolvers do is in `src/study/`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

ROOT = Path(__file__).parent.parent.parent
# The exit status of dvc's own errors.
DVC_ERROR = 255


def resolve(grid: Any = None, repeat: Any = None, *, _parent_: DictConfig | None = None) -> DictConfig:
    """Return `cells` of the study that is being composed; end dvc with one line for a mistake in it.

    They are of the study's own `grid` and `repeat` unless others are given.
    """
    with _in_a_line(_parent_) as study:
        from src.study.cells import cells

        given = [study.get(key) if own is None else own for key, own in (("grid", grid), ("repeat", repeat))]
        return cells(*given, study)


def resolve_folders(*, _parent_: DictConfig | None = None) -> DictConfig:
    """Return `folders` of the study that is being composed; end dvc with one line for a mistake in it."""
    with _in_a_line(_parent_) as study:
        from src.study.cells import folders

        return folders(study)


@contextlib.contextmanager
def _in_a_line(node: DictConfig | None) -> Iterator[dict[str, Any]]:
    """Yield the study, as far as it is composed; end dvc with one line for a mistake in it."""
    composed = None if node is None else OmegaConf.to_container(node, resolve=False)
    study: dict[Any, Any] = composed if isinstance(composed, dict) else {}
    # DVC's process finds neither `src` nor, beside it, readers and models of the user's own.
    sys.path.insert(0, str(ROOT))
    from src.config.mistakes import ConfigError

    try:
        yield study
    except ConfigError as error:
        # As an exception it would reach the user within sentences of OmegaConf and DVC.
        name = f"study {study['name']}: " if "name" in study else ""
        print(f"error: {name}{error}", file=sys.stderr)
        raise SystemExit(DVC_ERROR) from error
    finally:
        sys.path.remove(str(ROOT))


OmegaConf.register_new_resolver("cells", resolve, replace=True)
OmegaConf.register_new_resolver("folders", resolve_folders, replace=True)
