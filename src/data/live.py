"""Read a user's own torch Dataset, or LightningDataModule, sample by sample in each process that needs them.

Nothing is prepared. The order of samples is this project's own, so that it is the same under every strategy,
and what an item draws at random depends on the seed, the epoch and the item alone.

`python -m src.data.live DATASET` answers the parent, which imports no framework: DATASET is the mapping of
the dataset as JSON, and a line of JSON is printed with `samples`, `test_samples`, `batch` (of a DataModule's
own loader) and `notes`, or with `mistake` or `failure`, a sentence each.
"""

from __future__ import annotations

import inspect
import json
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.utils import data

from src.config import ConfigError, import_paths
from src.data.arrays import Arrays, Split
from src.data.random_streams import RandomStream, key, philox
from src.data.samples import Samples

KEY = "dataset.module"


@dataclass(frozen=True)
class LiveSplit(Split):
    """A split whose samples are items of a user's Dataset, of any form.

    Attributes:
        items: the Dataset, of a known length.
        collate: makes a batch of a list of items.
        batch: how many samples its own loader takes at once, or `None`.
    """

    items: Any = ()
    collate: Callable[[list[Any]], Any] = data.default_collate
    batch: int | None = None

    def __len__(self) -> int:
        return len(self.items)

    def read(self, indices: slice | np.ndarray) -> Samples:
        """Refuse to read arrays, for items have any form."""
        raise TypeError("the items of a user's own Dataset are no arrays")

    def part(self, rows: slice) -> LiveSplit:
        """Return the split of a contiguous part of the samples."""
        return replace(self, items=data.Subset(self.items, range(*rows.indices(len(self)))))

    def collated(self, indices: Sequence[int] | np.ndarray, seed: int, epoch: int) -> Any:
        """Return a batch of these items, drawn by the seed, the epoch from 0, and each item's number."""
        before = torch.get_rng_state(), random.getstate(), np.random.get_state()
        items = []
        for index in indices:
            number = key(RandomStream.AUGMENTATION, seed, epoch, int(index))
            torch.default_generator.manual_seed(number)
            random.seed(number)
            np.random.seed(number % 2**32)
            items.append(self.items[int(index)])
        batch = self.collate(items)
        # A step draws what it would have drawn of samples that aren't read here.
        torch.set_rng_state(before[0])
        random.setstate(before[1])
        np.random.set_state(before[2])
        return batch


@dataclass(frozen=True)
class LiveArrays(Arrays):
    """A user's own data.

    Attributes:
        module: the LightningDataModule that they are of, or `None`.
        notes: what the user should know of how they are read.
    """

    module: Any = None
    notes: tuple[str, ...] = ()


def make_torch(dataset: Mapping[str, Any]) -> LiveArrays:
    """Make the Dataset that `module` names, with `options`.

    One that takes `train` is made once with True and once with False; of another one a share is for testing.

    Raises:
        ConfigError: for what is no map-style Dataset.
    """
    factory = _factory(dataset)
    takes_train = "train" in inspect.signature(factory).parameters
    if takes_train:
        train, test = (_made(dataset, factory, train=train) for train in (True, False))
    else:
        whole = _made(dataset, factory)
        _check_items(dataset, whole)
        generator = philox(RandomStream.SYNTHETIC, dataset["generator_seed"])
        shuffled = np.argsort(generator.random_raw(len(whole)), kind="stable")
        tested = max(1, round(len(whole) * dataset["test_share"]))
        train, test = (
            data.Subset(whole, sorted(part.tolist())) for part in (shuffled[tested:], shuffled[:tested])
        )
    for split in (train, test):
        _check_items(dataset, split)
    return _arrays(dataset, LiveSplit((), (), train), LiveSplit((), (), test))


def make_lightning(dataset: Mapping[str, Any]) -> LiveArrays:
    """Make the LightningDataModule that `module` names, with `options`, and set it up.

    Raises:
        ConfigError: for what is none, or for loaders whose order or samples are their own.
    """
    import pytorch_lightning as pl

    module = _made(dataset, _factory(dataset))
    if not isinstance(module, pl.LightningDataModule):
        raise ConfigError(
            f"{KEY}={dataset['module']}: returned {type(module).__name__}, no LightningDataModule"
        )
    if dataset.get("prepares"):
        module.prepare_data()
    _seed(dataset)
    module.setup("fit")
    loaders = [_loader(dataset, module, name) for name in ("train_dataloader", "val_dataloader")]
    train, test = (
        LiveSplit((), (), loader.dataset, loader.collate_fn, loader.batch_size) for loader in loaders
    )
    notes = []
    if any(loader.num_workers for loader in loaders):
        notes.append("note: its loaders' num_workers aren't used: each rank reads its samples itself")
    if isinstance(loaders[0].sampler, data.SequentialSampler):
        notes.append("note: its training samples are shuffled by seed=, as under every strategy")
    return replace(_arrays(dataset, train, test), module=module, notes=tuple(notes))


def _factory(dataset: Mapping[str, Any]) -> Callable[..., Any]:
    found = import_paths.resolve(KEY, dataset["module"])
    if not callable(found):
        raise ConfigError(f"{KEY}={dataset['module']}: is a {type(found).__name__}, and nothing to be called")
    return found


def _seed(dataset: Mapping[str, Any]) -> None:
    """Have what is drawn as data are made be the same in every process."""
    number = dataset["generator_seed"]
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number % 2**32)


def _made(dataset: Mapping[str, Any], factory: Callable[..., Any], **more: Any) -> Any:
    """Call what makes the data, with the options that it takes."""
    options = {**dataset["options"], **more}
    parameters = inspect.signature(factory).parameters
    open_ended = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    if unknown := [name for name in options if name not in parameters and not open_ended]:
        takes = ", ".join(parameters) or "none"
        raise ConfigError(f"{KEY}={dataset['module']}: takes no option {unknown[0]!r}; it takes {takes}")
    lacking = [
        name
        for name, each in parameters.items()
        if each.default is each.empty
        and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
        and name not in options
    ]
    if lacking:
        raise ConfigError(
            f"{KEY}={dataset['module']}: needs the option {lacking[0]!r}; give "
            f"+dataset.options.{lacking[0]}=value"
        )
    _seed(dataset)
    return factory(**options)


def _check_items(dataset: Mapping[str, Any], items: Any) -> None:
    """Raise `ConfigError` unless items can be had by their number, of which there is at least one."""
    where = f"{KEY}={dataset['module']}"
    if isinstance(items, data.IterableDataset):
        raise ConfigError(
            f"{where}: is an IterableDataset, whose order no rank can share; give it __getitem__ and __len__"
        )
    if not hasattr(items, "__getitem__") or not hasattr(items, "__len__"):
        raise ConfigError(f"{where}: gives {type(items).__name__}, no Dataset with __getitem__ and __len__")
    if not len(items):
        raise ConfigError(f"{where}: has no sample")


def _loader(dataset: Mapping[str, Any], module: Any, name: str) -> data.DataLoader[Any]:
    """Return a DataModule's loader; raise `ConfigError` for one whose way of reading can't be kept."""
    from pytorch_lightning.utilities.model_helpers import is_overridden

    where = f"{KEY}={dataset['module']}: its {name}"
    if not is_overridden(name, module):
        use = "what is trained on" if name.startswith("train") else "what is scored"
        raise ConfigError(f"{KEY}={dataset['module']}: has no {name}, which gives {use}")
    loader = getattr(module, name)()
    if isinstance(loader, list | tuple) and len(loader) == 1:
        (loader,) = loader
    if not isinstance(loader, data.DataLoader):
        raise ConfigError(f"{where} returns {type(loader).__name__}; let it return one DataLoader")
    _check_items(dataset, loader.dataset)
    if type(loader.batch_sampler) is not data.BatchSampler:
        raise ConfigError(
            f"{where} has a batch_sampler of its own, and ranks share one order; give it batch_size"
        )
    plain = isinstance(loader.sampler, data.SequentialSampler | data.RandomSampler)
    if not plain or getattr(loader.sampler, "replacement", False):
        raise ConfigError(
            f"{where} draws by {type(loader.sampler).__name__}, and ranks share one order, in which "
            "each sample comes once an epoch; use shuffle=True"
        )
    return loader


def _arrays(dataset: Mapping[str, Any], train: LiveSplit, test: LiveSplit) -> LiveArrays:
    """Return the data of two splits, within the dataset's limits."""
    whole = LiveArrays(train, test, shape=(), names=(), mean=(), std=(), data_source=dataset["source"])
    return whole.first(dataset.get("limit"), dataset.get("test_limit"))  # type: ignore[return-value]


def main() -> None:
    """Answer how many samples a dataset has, and how many its own loader takes at once."""
    dataset = json.loads(sys.argv[1])
    try:
        arrays = import_paths.resolve("in_memory", dataset["in_memory"])({**dataset, "prepares": True})
        answer = {
            "samples": arrays.train_samples,
            "test_samples": arrays.test_samples,
            "batch": arrays.train.batch,
            "notes": arrays.notes,
        }
    except ConfigError as mistake:
        answer = {"mistake": str(mistake)}
    except BaseException as error:
        answer = {"failure": import_paths.describe_error(error)}
    print(f"\n{json.dumps(answer)}", flush=True)


if __name__ == "__main__":
    main()
