"""Turn text into the numbers of tokens: bytes as they are, or byte pairs by the library `tokenizers`.

A number stands for each token. The one of 0 is for padding: no text has it.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from src.data.errors import DataError, DataMistake

BYTES = "bytes"
PADDING = "<pad>"
KEY = "dataset.options.vocabulary"
# A byte-level vocabulary has a token for each byte, and padding.
LEAST = 257
# Texts that are tokenized at once, by as many threads as there are cores.
AT_ONCE = 32


@dataclass(frozen=True)
class Vocabulary:
    """The tokens that text is made of.

    Attributes:
        names: of the tokens, by number.
        tokenizer: of the library `tokenizers`; `None` where tokens are bytes.
        encoding: by which a tokenizer's text is decoded of bytes.
    """

    names: tuple[str, ...]
    tokenizer: Any
    encoding: str

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the smallest type of at least 16 bits that holds each token's number."""
        return np.dtype(np.uint16 if len(self.names) <= 1 << 16 else np.uint32)

    def encode(self, texts: Sequence[bytes]) -> list[np.ndarray]:
        """Return the numbers of the tokens of each text, [tokens] of `dtype`."""
        if self.tokenizer is None:
            return [np.frombuffer(text, np.uint8).astype(self.dtype) for text in texts]
        encoded = []
        for start in range(0, len(texts), AT_ONCE):
            some = list(decoded(texts[start : start + AT_ONCE], self.encoding))
            tokens = self.tokenizer.encode_batch_fast(some, add_special_tokens=False)
            encoded += [np.array(each.ids, self.dtype) for each in tokens]
        return encoded


def make(chosen: str | int, training: Sequence[bytes], encoding: str) -> Vocabulary:
    """Make the vocabulary that `dataset.options.vocabulary` asks for.

    Args:
        chosen: `bytes`; a number of tokens, of which as many are learned as pairs of bytes (Sennrich et al.
            2016) of the training text; or the path of a `tokenizer.json`.
        training: the texts to train on.
        encoding: of the texts; that of a vocabulary of bytes doesn't matter.

    Raises:
        DataMistake: for anything else, or where `tokenizers` isn't installed.
        DataError: for text of another encoding.
    """
    if chosen == BYTES:
        shown = [chr(byte) if 32 < byte < 127 else f"0x{byte:02x}" for byte in range(256)]
        return Vocabulary((PADDING, *shown[1:]), None, encoding)
    is_number = isinstance(chosen, int) and not isinstance(chosen, bool)
    if not is_number and not (isinstance(chosen, str) and chosen.endswith(".json")):
        raise DataMistake(
            f"{KEY}={chosen}: must be bytes, a number of tokens from {LEAST} on, or a tokenizer.json's path"
        )
    if is_number and int(chosen) < LEAST:
        raise DataMistake(f"{KEY}={chosen}: must be {LEAST} at least, one for each byte and one for padding")
    if importlib.util.find_spec("tokenizers") is None:
        raise DataMistake(
            f"{KEY}={chosen}: needs the library tokenizers, which isn't installed: "
            "pip install -c constraints.txt -e '.[huggingface]'; vocabulary=bytes needs none"
        )
    tokenizer = _trained(int(chosen), training, encoding) if is_number else _read(Path(str(chosen)))
    size = tokenizer.get_vocab_size()
    if is_number and size < int(chosen):
        raise DataMistake(
            f"{KEY}={chosen}: the training text has pairs for {size} tokens alone; choose {size} or fewer"
        )
    names = tuple(tokenizer.id_to_token(number) or f"token {number}" for number in range(size))
    return Vocabulary(names, tokenizer, encoding)


def decoded(texts: Iterable[bytes], encoding: str) -> Iterator[str]:
    """Yield texts as strings; raise `DataError` for one of another encoding."""
    for text in texts:
        try:
            yield text.decode(encoding)
        except UnicodeDecodeError as error:
            around = text[max(0, error.start - 20) : error.end + 20]
            raise DataError(
                f"the text isn't {encoding} at {around!r}; name its dataset.options.encoding, or "
                f"choose {KEY}=bytes, which takes any"
            ) from error


def _trained(size: int, training: Sequence[bytes], encoding: str) -> Any:
    """Learn a byte-level vocabulary of `size` tokens; it depends on the text alone."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[PADDING], initial_alphabet=sorted(alphabet), show_progress=False
    )
    tokenizer.train_from_iterator(decoded(training, encoding), trainer)
    return tokenizer


def _read(path: Path) -> Any:
    """Read a tokenizer's file; raise `DataMistake` where there is none."""
    from tokenizers import Tokenizer

    try:
        text = path.expanduser().read_text(encoding="utf-8")
        json.loads(text)
        tokenizer = Tokenizer.from_str(text)
    except OSError as error:
        raise DataMistake(f"{KEY}={path}: {error.strerror or error}") from error
    # The library raises plain exceptions.
    except Exception as error:
        raise DataMistake(f"{KEY}={path}: is no tokenizer.json: {error}") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
