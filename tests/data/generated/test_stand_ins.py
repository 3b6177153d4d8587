"""Stand-ins have the originals' files and formats, and are the same whenever and wherever they're written."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from src.data.generated import cifar10, flowers, imagenet64, vnfoods30
from src.data.generated.randomness import Stream
from src.data.generated.scenes import Difficulty, composition
from src.data.generated.split_sizes import labels, scaled, share, spread
from src.data.samples import SampleSource
from tests.data.generated.stand_in import NAMES, choice, read, write
from tests.support import fill

SIZES = {"cifar10": None, "imagenet64": None, "flowers": 64, "vnfoods30": 64}
# Numbers of samples as if so few were published, so that whole stand-ins are written in a moment.
TINY_COUNTS = {
    "cifar10": (53, 21),
    "imagenet64": (64, 30),
    "flowers": (20, 5),
    "vnfoods30": (30, 30),
}
# sha256 of all training samples in order, then all test samples: images, then labels.
DIGESTS = {
    "cifar10": "a99a84e73f13037c304f3d1c7836c5ad92aafc498b9acc022c410eeb66e99e85",
    "imagenet64": "ffede29a737390a1b44cd955f030ed2d493966b7685fb9e3c7308beb20b81d80",
    "flowers": "9985298e20b5c52ccaaa267532e3cc2659412e5619216a2bcfb87a1ff097be36",
    "vnfoods30": "d2ee0e5585fa7ccb78482a7bdcef9649660108dd577d866cffe16f3e95602f32",
}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((cifar10, "cifar10"), (imagenet64, "imagenet64")):
        train, test = TINY_COUNTS[name]
        monkeypatch.setattr(module, "TRAIN", train)
        monkeypatch.setattr(module, "TEST", test)
    monkeypatch.setattr(flowers, "TRAIN", 20)
    monkeypatch.setattr(flowers, "IMAGES", dict.fromkeys(flowers.IMAGES, 5))
    monkeypatch.setattr(vnfoods30, "IMAGES", {"Train": 30, "Validate": 30, "Test": 30})


def digest(*sources: SampleSource) -> str:
    total = hashlib.sha256()
    for source in sources:
        samples = source.read(0, len(source))
        assert not samples.damaged
        total.update(np.ascontiguousarray(samples.inputs[0]).tobytes())
        total.update(samples.targets[0].astype("<i8").tobytes())
    return total.hexdigest()


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("name", NAMES)
def test_archives_are_read_as_originals_and_are_the_same_everywhere(tmp_path: Path, name: str) -> None:
    dataset = choice(name)
    write(dataset, tmp_path / "archives")
    assert sorted(path.name for path in (tmp_path / "archives").iterdir()) == sorted(dataset["files"])
    splits = read(dataset, tmp_path / "archives", tmp_path / "raw", SIZES[name])
    assert (len(splits.train), len(splits.test)) == TINY_COUNTS[name]
    assert digest(splits.train, splits.test) == DIGESTS[name]

    write(dataset, tmp_path / "again")
    write(dataset, tmp_path / "other", seed=1)
    for file in dataset["files"]:
        archives = [(tmp_path / folder / file).read_bytes() for folder in ("archives", "again", "other")]
        assert archives[0] == archives[1], "its bytes depend on the time or the folder"
        assert archives[0] != archives[2], "the seed changes nothing"


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("name", NAMES)
def test_a_stand_in_that_fails_leaves_no_file(disk: Path, name: str) -> None:
    fill(disk, leave=8192)
    with pytest.raises(OSError, match="No space"):
        write(choice(name), disk / "archives")
    assert not list((disk / "archives").iterdir())


def test_random_numbers_are_philox_words_scaled_by_integers() -> None:
    stream = Stream(0, "toy")
    key = int.from_bytes(hashlib.sha256(b"0 toy").digest()[:16], "little")
    words = [int(word) for word in np.random.Philox(key=key).random_raw(5)]
    assert stream.integers(-3, 7, (3,)).tolist() == [-3 + ((word >> 32) * 10 >> 32) for word in words[:3]]
    assert (
        stream.octets(11).tolist()
        == list(words[3].to_bytes(8, "little") + words[4].to_bytes(8, "little"))[:11]
    )
    assert sorted(stream.shuffled(np.arange(9)).tolist()) == list(range(9))


@pytest.mark.parametrize(
    ("difficulty", "classes"),
    [
        (cifar10.DIFFICULTY, 10),
        (imagenet64.DIFFICULTY, 1000),
        (flowers.DIFFICULTY, 5),
        (vnfoods30.DIFFICULTY, 30),
    ],
)
def test_each_class_is_a_composition_of_its_own_and_no_attribute_tells_it(
    difficulty: Difficulty, classes: int
) -> None:
    attributes = composition(np.arange(classes), difficulty.values)
    assert len({*zip(*(each.tolist() for each in attributes), strict=True)}) == classes
    assert [len({*each.tolist()}) for each in attributes] == list(difficulty.values)
    assert all(values < classes for values in difficulty.values)


def test_a_share_has_at_least_2000_training_images_or_all() -> None:
    assert scaled(50_000, share(0.02, 50_000)) == 2_000
    assert scaled(10_000, share(0.02, 50_000), least=200) == 400
    assert scaled(1_281_167, share(0.02, 1_281_167)) == 25_624
    assert scaled(50_000, share(0.02, 1_281_167)) == 1_000
    assert scaled(1_500, share(0.02, 1_500)) == 1_500
    assert scaled(50_000, share(1.0, 50_000)) == 50_000
    assert spread(11, 4) == [3, 3, 3, 2]


def test_classes_have_equally_many_samples_in_random_order() -> None:
    drawn = labels(Stream(0, "toy"), 105, 10)
    assert np.bincount(drawn).tolist() == [11] * 5 + [10] * 5
    assert drawn.tolist() != sorted(drawn.tolist())
