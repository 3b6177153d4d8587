"""No two streams of random numbers share a key, and each draws what it has drawn before.

What generated data draw is tested beside their generators.
"""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import torch

from src.data.augmentation import draws
from src.data.order import epoch_order
from src.data.random_streams import RandomStream, key
from src.runtime.common import rounding
from src.runtime.torch import step_seeds
from tests.support import config

LARGEST_SEED = 2**31 - 1
SEEDS = (0, 1, 7, 42, LARGEST_SEED)
NUMBERS = (0, 1, 2, 3, 7, 100, 12_345, 10**9)
PLACES: dict[RandomStream, list[tuple[int | str, ...]]] = {
    RandomStream.WEIGHTS: [()],
    RandomStream.STEP: list(itertools.product((0, 1, 7), NUMBERS)),
    RandomStream.COMPRESSION: [()],
    RandomStream.ORDER: [(epoch,) for epoch in NUMBERS],
    RandomStream.SYNTHETIC: [()],
    RandomStream.ROUNDING: [()],
    RandomStream.STAND_IN: [(name,) for name in ("", "0", "flowers daisy", "cifar10 test_batch")],
    RandomStream.AUGMENTATION: [(epoch,) for epoch in NUMBERS],
}
# Streams whose numbers one kind of generator draws, with the part of a key that it takes: torch's on a CPU
# has 32 bits. Those that are alone are drawn by a generator of their own.
GENERATORS = (
    ({RandomStream.WEIGHTS, RandomStream.STEP}, 2**32),
    ({RandomStream.ORDER, RandomStream.SYNTHETIC, RandomStream.ROUNDING, RandomStream.STAND_IN}, 2**128),
    ({RandomStream.COMPRESSION}, 2**32),
    ({RandomStream.AUGMENTATION}, 2**64),
)


def digest(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


def test_no_two_streams_share_a_key_nor_two_places_of_one() -> None:
    assert sorted(stream.name for streams, _ in GENERATORS for stream in streams) == sorted(
        stream.name for stream in RandomStream
    )
    for streams, size in GENERATORS:
        keys = [
            key(stream, seed, *place) % size
            for stream in streams
            for seed in SEEDS
            for place in PLACES[stream]
        ]
        assert len(set(keys)) == len(keys), streams


def test_an_epochs_order_is_what_it_was() -> None:
    orders = ((0, 0, None), (7, 3, None), (LARGEST_SEED, 5, 64))
    drawn = [digest(epoch_order(1000, seed, epoch, window)) for seed, epoch, window in orders]
    assert drawn == ["43b0116ea6ec8706", "5dd4a4a3c0ab66a3", "277915aee5d29fc7"]


def test_augmentation_draws_what_it_drew() -> None:
    indices = np.arange(5, 305)
    words = [
        draws.words(*each) for each in ((0, 0, indices, 1), (7, 3, indices, 2), (LARGEST_SEED, 9, indices, 6))
    ]
    assert [digest(each) for each in words] == ["2084575fc7a47327", "45b1c632a5ea29cd", "21de89ab4bb22ebc"]
    assert digest(draws.fractions(7, 3, indices, 6)) == "edc4c407e128ecf3"


def test_a_training_step_draws_what_it_drew() -> None:
    """Ranks that share a batch draw the same numbers, and stages of a pipeline their own."""
    cases = (
        ("strategy=single workers=1 seed=0", 0, 0, 15793235383387715774),
        ("strategy=pipeline workers=2 seed=7", 1, 5, 13164998824995918645),
        ("strategy=ddp workers=2 seed=7", 1, 5, 10377285220603747909),
        (f"strategy=pipeline workers=2 seed={LARGEST_SEED}", 1, 123456, 10166232242826750066),
    )
    for words, rank, step, expected in cases:
        with torch.random.fork_rng(devices=[]):
            step_seeds.seed(config(*words.split()), rank, step)
            assert torch.initial_seed() == expected


def test_directions_of_rounding_are_what_they_were() -> None:
    drawn = [rounding.directions(rounding.generator_of(seed), (100, 3)) for seed in (0, 7, LARGEST_SEED)]
    assert [digest(each) for each in drawn] == ["1dd4d2fce1d6bec2", "1a093e4e92469575", "8a4888ffad42ced6"]


def test_weights_and_compression_are_drawn_by_the_seed_itself() -> None:
    assert {key(stream, 7) for stream in (RandomStream.WEIGHTS, RandomStream.COMPRESSION)} == {7}
