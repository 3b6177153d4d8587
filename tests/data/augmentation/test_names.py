"""Every augmentation that a dataset allows is there."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from src.config.keys import KEYS
from src.data.augmentation import AUGMENTATIONS
from tests.support import ROOT

DATASETS = sorted((ROOT / "conf" / "dataset").glob("*.yaml"))


@pytest.mark.parametrize("path", DATASETS, ids=lambda path: path.stem)
def test_a_dataset_allows_augmentations_that_there_are(path: Path) -> None:
    allowed = yaml.safe_load(path.read_text(encoding="utf-8")).get("allowed", {})
    names = allowed.get("augment", KEYS["dataset.augment"].rule.choices)
    assert names[0] == "none"
    assert set(names[1:]) <= set(AUGMENTATIONS)


def test_every_augmentation_suits_a_dataset() -> None:
    read = [yaml.safe_load(path.read_text(encoding="utf-8")).get("allowed", {}) for path in DATASETS]
    assert {name for allowed in read for name in allowed.get("augment", ())} == {"none", *AUGMENTATIONS}
