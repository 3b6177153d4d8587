"""Read text as packed sequences of tokens, to learn each one's next token, or of what class a text is.

    text       | T h e _ g u l l | f a m i l y . |     in blocks, of which some are for testing
    inputs     [T h e _] [g u l l] ...                 sequences of `length` tokens, without padding
    targets    [h e _ g] [u l l f] ...                 the token that follows each

Blocks are some hundred lines of one text. Training and test text share none, and so no sequence. Their order
is drawn, so that the first N sequences (`dataset.limit`) are of all parts of a text, and not of its first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from src.data.errors import DataError, DataMistake
from src.data.readers import vocabulary
from src.data.readers.raw_files import folders, is_foreign
from src.data.readers.vocabulary import Vocabulary
from src.data.samples import ArraySource, Splits

TRAIN = "train"
# Folders of texts to test by, the first of which is taken.
TESTS = ("test", "val", "valid", "validation")
# Bytes of a block, and the least number of blocks of a shorter text.
BLOCK, BLOCKS = 1 << 16, 50
# Sequences that a block of a short text has at least; a token of it may be some bytes.
LEAST_SEQUENCES, BYTES_PER_TOKEN = 2, 4

Texts = dict[str, list[bytes]]


def read(raw: Path, options: dict[str, Any]) -> Splits:
    """Read the one text that is all files in `raw`, one after the other, to learn next tokens.

    `options` are `length` and `vocabulary` of sequences, `test_share` and `seed` of the blocks to test by,
    and `encoding`. Inputs and targets are token numbers, uint16 [length], or uint32 of a large vocabulary.

    Raises:
        DataMistake: for options that mean nothing.
        DataError: for too little text, or what is no text.
    """
    paths = sorted(path for path in raw.iterdir() if path.is_file() and not is_foreign(path, raw))
    return _next_tokens(_divided({"": [_text(path) for path in paths]}, options), options)


def read_folder(raw: Path, options: dict[str, Any]) -> Splits:
    """Read the texts of the one folder in `raw`, to learn next tokens; `options` and errors as of `read`.

    Texts are all files below it that end in `options["suffix"]`. Those in its folders `train` and `test` (or
    `val`) are of these splits; without such folders blocks are drawn to test by.
    """
    (root,) = folders(raw)
    left_out: list[Path] = []
    parts = {name: {"": _below(folder, options, left_out)} for name, folder in _parts(root).items()}
    divided = (parts[TRAIN], parts["test"]) if "test" in parts else _divided(parts[TRAIN], options)
    return _next_tokens(divided, options, _warnings(root, left_out))


def read_classes(raw: Path, options: dict[str, Any]) -> Splits:
    """Read texts in a folder for each class, to learn of what class a sequence of tokens is.

    `options` and errors are as those of `read`. The folders of classes are in the one folder in `raw`, or in
    its folders `train` and `test`. Inputs are token numbers [length] of one text each, padded by 0 at its
    end; targets are labels, int64 [].
    """
    (root,) = folders(raw)
    left_out: list[Path] = []
    parts = {
        name: {each.name: _below(each, options, left_out) for each in folders(folder)}
        for name, folder in _parts(root).items()
    }
    train, test = (parts[TRAIN], parts["test"]) if "test" in parts else _divided(parts[TRAIN], options)
    names = tuple(sorted(train))
    if tuple(sorted(test)) != names:
        others = ", ".join(sorted(test))
        raise DataError(
            f"{root.name}: training texts are of {', '.join(names)}, those to test by of {others}"
        )
    known = _vocabulary(train, options)
    sources = [_labelled(texts, names, known, _length(options)) for texts in (train, test)]
    return Splits(sources[0], sources[1], names, _warnings(root, left_out), len(known.names))


def _parts(root: Path) -> dict[str, Path]:
    """Return the folders of training and test texts, or that of all texts as `train`."""
    found = {folder.name.lower(): folder for folder in folders(root)}
    tests = [name for name in TESTS if name in found]
    if TRAIN in found and tests and not found.keys() - {TRAIN, *TESTS}:
        return {TRAIN: found[TRAIN], "test": found[tests[0]]}
    return {TRAIN: root}


def _below(folder: Path, options: Mapping[str, Any], left_out: list[Path]) -> list[bytes]:
    """Return the texts below a folder; add files that are none to `left_out`."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and not is_foreign(path, folder)]
    left_out += [path for path in paths if path.suffix.lower() != options["suffix"]]
    texts = [_text(path) for path in paths if path.suffix.lower() == options["suffix"]]
    if not texts:
        raise DataError(f"{folder.name}/ has no file of {options['suffix']}, nor has a folder below it")
    return texts


def _text(path: Path) -> bytes:
    """Return a file's bytes, ended by a line feed; raise `DataError` for what is no text."""
    text = path.read_bytes().replace(b"\r\n", b"\n")
    if b"\0" in text:
        raise DataError(f"{path.name}: has bytes of 0, and so is no text, or UTF-16; save it as UTF-8")
    return text if text.endswith(b"\n") else text + b"\n"


def _warnings(root: Path, left_out: Sequence[Path]) -> tuple[str, ...]:
    if not left_out:
        return ()
    first = left_out[0].resolve().relative_to(root.resolve())
    return (f"left out {len(left_out)} files of another ending; the first is {first}",)


def _length(options: Mapping[str, Any]) -> int:
    length = options["length"]
    if not isinstance(length, int) or isinstance(length, bool) or length < 1:
        raise DataMistake(f"dataset.options.length={length}: must be a whole number of tokens from 1 on")
    return length


def _divided(texts: Texts, options: Mapping[str, Any]) -> tuple[Texts, Texts]:
    """Return the blocks to train on and those to test by, of each class, in an order that the seed draws."""
    share = options["test_share"]
    if not (isinstance(share, int | float) and 0 < share < 1):
        raise DataMistake(f"dataset.options.test_share={share}: must be between 0 and 1")
    train, test = {}, {}
    for name, some in texts.items():
        size = sum(map(len, some))
        least = LEAST_SEQUENCES * BYTES_PER_TOKEN * _length(options)
        blocks = [block for text in some for block in _blocks(text, min(BLOCK, max(least, size // BLOCKS)))]
        if len(blocks) < 2:
            raise DataError(
                f"{name or 'the text'}: has {size:,} bytes, too few for training and test text in sequences "
                f"of dataset.options.length={options['length']} tokens; give more, or choose a shorter length"
            )
        order = sorted(range(len(blocks)), key=lambda place: _hash(options["seed"], name, place))
        count = min(max(1, round(share * len(blocks))), len(blocks) - 1)
        test[name], train[name] = ([blocks[n] for n in part] for part in (order[:count], order[count:]))
    return train, test


def _hash(seed: int, name: str, place: int) -> str:
    return hashlib.sha256(f"{seed} {name} {place}".encode(errors="surrogateescape")).hexdigest()


def _blocks(text: bytes, size: int) -> list[bytes]:
    """Return a text in blocks of about `size` bytes, each of whole lines, or at least of whole characters."""
    blocks, start = [], 0
    while start < len(text):
        stop = min(start + size, len(text))
        line = text.find(b"\n", stop - 1, stop + size)
        stop = stop if line < 0 else line + 1
        # A byte 10xxxxxx continues a character of UTF-8.
        while stop < len(text) and text[stop] & 0xC0 == 0x80:
            stop += 1
        blocks.append(text[start:stop])
        start = stop
    return blocks


def _vocabulary(train: Texts, options: Mapping[str, Any]) -> Vocabulary:
    training = [text for some in train.values() for text in some]
    return vocabulary.make(options["vocabulary"], training, options["encoding"])


def _next_tokens(
    divided: tuple[Texts, Texts], options: Mapping[str, Any], warnings: tuple[str, ...] = ()
) -> Splits:
    """Return packed sequences and those one token on, of training and test texts."""
    known = _vocabulary(divided[0], options)
    train, test = (_packed(texts[""], known, _length(options)) for texts in divided)
    return Splits(train, test, known.names, warnings, len(known.names))


def _packed(texts: Sequence[bytes], known: Vocabulary, length: int) -> ArraySource:
    """Return the sequences of texts, one after the other; what is left over at the end is left out."""
    tokens = np.concatenate([np.empty(0, known.dtype), *known.encode(texts)])
    count = (len(tokens) - 1) // length
    if count < 1:
        raise DataError(
            f"a split has {len(tokens):,} tokens, too few for a sequence of dataset.options.length={length} "
            "and its next token; give more text, or choose a shorter length"
        )
    rows = (count, length)
    inputs, targets = (tokens[first : first + count * length].reshape(rows) for first in (0, 1))
    return ArraySource((inputs,), (targets,))


def _labelled(texts: Texts, names: Sequence[str], known: Vocabulary, length: int) -> ArraySource:
    """Return the sequences of each text, padded at its end, with the numbers of their classes."""
    rows, labels = [], []
    for label, name in enumerate(names):
        for tokens in known.encode(texts[name]):
            padded = np.zeros(-(-len(tokens) // length) * length, known.dtype)
            padded[: len(tokens)] = tokens
            rows.append(padded.reshape(-1, length))
            labels.append(np.full(len(rows[-1]), label, np.int64))
    return ArraySource((np.concatenate(rows),), (np.concatenate(labels),))
