"""A LightningModule that can't be trained as its author wrote it is answered in one line, before any rank."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pytorch_lightning.core import hooks

from src import preflight
from src.config import ConfigError, class_text
from src.config.import_paths import describe_error
from tests.support import ROOT, config

HERE = "tests.strategies.own_lightning"
DATA = ("dataset=lightning", f"dataset.module={HERE}.Data")
LIT = ("model=lightning", f"model.path={HERE}.Hooked")


def module(name: str, *more: str) -> tuple[str, ...]:
    return ("model=lightning", f"model.path={HERE}.{name}", *DATA, *more)


# What is typed, and a part of the sentence.
TYPED = [
    (("model=lightning",), "needs model.path=package.module.name, as mine.Lit"),
    ((*LIT, "optimizer.lr=0.1"), "optimizer.lr=0.1: .*Hooked has a configure_optimizers, which decides that"),
    ((*LIT, "optimizer.clip_norm=1"), "optimizer.clip_norm=1: .*has a configure_optimizers"),
    ((*LIT, "strategy=pipeline"), "strategy=pipeline has a step of its own .*choose strategy=single, ddp"),
    ((*LIT, "strategy=parameter_server"), "or model=custom model.path="),
    ((*LIT, "strategy=single", "strategy.compile=true"), "strategy.compile=true: compiles a model's forward"),
    ((*LIT, "checkpoint_every=5"), "checkpoint_every=5: what a LightningModule keeps .* leave it away"),
    (("task=lightning",), "task=lightning: is a LightningModule's own validation; choose model=lightning"),
    ((*LIT, "dataset=torch"), "needs dataset.module=package.module.Class, a torch Dataset"),
    (("dataset=torch", f"dataset.module={HERE}.Points"), "choose model=lightning model.path="),
    ((*LIT, "dataset=torch", f"dataset.module={HERE}.Nothing"), "has no 'Nothing'; did you mean"),
]
# These ask a process that imports the data.
LOOKED = [
    ((*LIT, *DATA, "batch=32"), "batch=32: .*Data has a batch size of its own, 16"),
    ((*LIT, "dataset=torch", f"dataset.module={HERE}.Stream"), "is an IterableDataset"),
    ((*LIT, "dataset=lightning", f"dataset.module={HERE}.Weighted"), "draws by WeightedRandomSampler"),
    ((*LIT, "dataset=lightning", f"dataset.module={HERE}.Points"), "returned Points, no LightningDataModule"),
    ((*LIT, *DATA, "+dataset.options.size=3"), "takes no option 'size'; it takes batch_size"),
]
# These are found by one step of two samples.
TRIED = [
    (module("NoStep"), "has no training_step; write one, or choose model=custom"),
    (module("Skips"), "training_step returned None, which would skip a step"),
    (module("Calls"), "configure_callbacks returns EarlyStopping"),
    (module("Unmonitored"), "monitors 'val_acc', and what it logs is val_loss"),
    (module("NeedsLogger"), "'NoneType' object has no attribute 'experiment', at .*own_lightning.py:"),
    (module("Adversaries", "strategy=local_sgd"), "optimises by hand.*choose strategy=single, ddp or mpi"),
    (module("Adversaries", "microbatches=2"), "microbatches=2: .*optimises by hand"),
    (module("Adversaries", "strategy=ddp", "batch_shares=[10,6]"), "batch_shares=.*optimises by hand"),
    (("model=lightning", "model.path=torch.nn.Identity", *DATA), "is a torch module and no LightningModule"),
    (("model=lightning", "model.path=json.dumps", "+model.options.obj=1", *DATA), "returned a str, not a"),
]


@pytest.mark.parametrize(("words", "sentence"), TYPED)
def test_what_is_typed_is_answered(words: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as raised:
        config(*words)
    assert "\n" not in str(raised.value)


@pytest.mark.slow
@pytest.mark.parametrize(("words", "sentence"), LOOKED)
def test_data_that_ranks_cannot_share_are_answered(words: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as raised:
        config(*words)
    assert "\n" not in str(raised.value)


@pytest.mark.slow
@pytest.mark.parametrize(("words", "sentence"), TRIED)
def test_a_module_is_tried_before_any_rank(words: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    chosen = config(*words)
    with pytest.raises(Exception, match="") as raised:
        preflight.look_into(chosen, tmp_path)
    line = describe_error(raised.value)
    assert re.search(sentence, line), line
    assert "\n" not in line


def test_a_text_tells_whether_a_class_has_an_optimizer() -> None:
    demos = "pytorch_lightning.demos.boring_classes"
    assert class_text.defines(f"{HERE}.Hooked", "configure_optimizers") is True
    assert class_text.defines(f"{HERE}.Plain", "configure_optimizers") is False
    # They are inherited, within the module and from another one.
    assert class_text.defines(f"{demos}.ManualOptimBoringModel", "configure_optimizers") is True
    assert class_text.defines(f"{HERE}.Transformer", "configure_optimizers") is True
    assert class_text.defines("json.dumps", "configure_optimizers") is None


def test_a_module_with_an_update_of_its_own_claims_no_rate() -> None:
    chosen = config(*LIT)
    assert chosen.optimizer["name"] == "own" and chosen.optimizer["lr"] is None
    assert config("model=lightning", f"model.path={HERE}.Plain").optimizer["lr"] == 0.01


def test_the_page_says_of_each_hook_what_becomes_of_it() -> None:
    page = (ROOT / "docs" / "lightning.md").read_text()
    kinds = (hooks.ModelHooks, hooks.DataHooks, hooks.CheckpointHooks)
    names = [name for kind in kinds for name in vars(kind) if not name.startswith("_")]
    assert [name for name in names if f"`{name}`" not in page] == []
