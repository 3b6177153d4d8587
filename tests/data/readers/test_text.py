"""Text is packed into sequences of tokens: each target is the next one, and no text is in both splits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src.data.catalog import choice
from src.data.errors import DataError
from src.data.generated import gcide
from src.data.readers import text
from src.data.samples import SampleSource, Splits
from tests.support import ROOT

OPTIONS = {
    "length": 16,
    "vocabulary": "bytes",
    "encoding": "utf-8",
    "suffix": ".txt",
    "test_share": 0.1,
    "seed": 0,
}
LINES = [f"line {number:05d} of a text\n" for number in range(4000)]


def write(root: Path, files: dict[str, str | bytes]) -> Path:
    """Write files of text into a folder as the reader gets it; return that it is in."""
    for name, content in files.items():
        path = root / "folder" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def tokens(source: SampleSource) -> np.ndarray:
    return source.read(0, len(source)).inputs[0]


def lines(source: SampleSource) -> set[bytes]:
    """The whole lines of a split of bytes."""
    return set(tokens(source).astype(np.uint8).tobytes().split(b"\n")[1:-1])


def read(tmp_path: Path, files: dict[str, str | bytes], **options: Any) -> Splits:
    return text.read_folder(write(tmp_path, files), {**OPTIONS, **options})


def test_each_target_is_the_next_token_and_sequences_follow_one_another(tmp_path: Path) -> None:
    splits = read(tmp_path, {"train/a.txt": "abcdefgh", "val/b.txt": "xyzxyz"}, length=3)
    assert splits.vocabulary == len(splits.names) == 256
    for source, expected in ((splits.train, b"abcdefgh\n"), (splits.test, b"xyzxyz\n")):
        samples = source.read(0, len(source))
        (inputs,), (targets,) = samples.inputs, samples.targets
        assert inputs.dtype == targets.dtype == np.uint16
        count = (len(expected) - 1) // 3 * 3
        assert inputs.tobytes() == np.frombuffer(expected[:count], np.uint8).astype(np.uint16).tobytes()
        assert targets.tobytes() == np.frombuffer(expected[1 : count + 1], np.uint8).astype("u2").tobytes()


def test_no_line_is_trained_on_and_tested_by_and_tests_are_of_everywhere(tmp_path: Path) -> None:
    splits = read(tmp_path, {"a.txt": "".join(LINES)})
    train, test = lines(splits.train), lines(splits.test)
    assert len(test) > 300 and not train & test
    places = sorted(int(line.split()[1]) for line in test)
    # Two blocks that follow one another in the text have 160 lines or so.
    assert places[-1] - places[0] > 1000
    other = text.read_folder(tmp_path, {**OPTIONS, "seed": 1})
    assert lines(other.test) != test
    # The first sequences, which `dataset.limit` leaves, are not the beginning of the text.
    assert not tokens(splits.train)[0].astype(np.uint8).tobytes().startswith(b"line 00000")


@pytest.mark.parametrize("vocabulary", [300, 1000])
def test_byte_pairs_are_learned_of_training_text_alone_and_are_the_same_anywhere(
    tmp_path: Path, vocabulary: int
) -> None:
    files = {
        "train/a.txt": "".join(LINES) + "every gull is a bird\n" * 99,
        "val/b.txt": "zebra " * 9,
    }
    files["train/c.txt"] = " ".join(f"{number}th" for number in range(3000))
    splits = read(tmp_path, files, vocabulary=vocabulary, length=8)
    assert len(splits.names) == vocabulary and splits.names[0] == "<pad>"
    assert any("ine" in name for name in splits.names) and not any("zeb" in name for name in splits.names)
    # Text of no pair that is known is told by its bytes, and nothing is padding.
    assert tokens(splits.test).min() > 0 and tokens(splits.train).min() > 0
    code = (
        "import sys; from pathlib import Path; from tests.data.readers.test_text import *\n"
        f"s = text.read_folder(Path(sys.argv[1]), {{**OPTIONS, 'vocabulary': {vocabulary}, 'length': 8}})\n"
        "sys.stdout.buffer.write(tokens(s.train).tobytes())"
    )
    again = subprocess.run([sys.executable, "-c", code, tmp_path], cwd=ROOT, capture_output=True, check=True)
    assert again.stdout == tokens(splits.train).tobytes()


def test_a_tokenizer_of_a_file_is_used_as_it_is(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    known = Tokenizer(models.WordLevel({"[UNK]": 0, "line": 1, "of": 2}, unk_token="[UNK]"))
    known.pre_tokenizer = pre_tokenizers.Whitespace()
    known.enable_padding(length=99)
    known.save(str(tmp_path / "tokenizer.json"))
    splits = read(tmp_path, {"a.txt": "".join(LINES)}, vocabulary=str(tmp_path / "tokenizer.json"))
    assert splits.names == ("[UNK]", "line", "of")
    assert {*np.unique(tokens(splits.train)).tolist()} == {0, 1, 2}


def test_a_large_vocabulary_has_32_bits() -> None:
    from src.data.readers.vocabulary import Vocabulary

    assert Vocabulary(("",) * 65_536, None, "").dtype == np.uint16
    assert Vocabulary(("",) * 65_537, None, "").dtype == np.uint32


def test_texts_of_classes_are_padded_and_labelled(tmp_path: Path) -> None:
    files = {"train/b/1.txt": "b" * 20, "train/a/1.txt": "a" * 15, "test/a/2.txt": "xa", "test/b/2.txt": "xb"}
    splits = text.read_classes(write(tmp_path, dict(files)), OPTIONS)
    assert splits.names == ("a", "b") and splits.vocabulary == 256
    samples = splits.train.read(0, 9)
    assert samples.targets[0].dtype == np.int64 and samples.targets[0].tolist() == [0, 1, 1]
    assert bytes(samples.inputs[0][2].tolist()) == b"bbbb\n" + 11 * b"\0"


@pytest.mark.parametrize(
    ("files", "options", "told"),
    [
        (
            {"a.txt": "short"},
            {},
            "too few for training and test text in sequences of dataset.options.length=16",
        ),
        ({"a.md": "words " * 99}, {}, "has no file of .txt"),
        ({"a.txt": "words".encode("utf-16") * 99}, {}, "a.txt: has bytes of 0, and so is no text, or UTF-16"),
        ({"a.txt": b"caf\xe9 " * 99}, {"vocabulary": 300}, "isn't utf-8 at b'caf\\xe9 caf"),
        ({"a.txt": "a b " * 99}, {"vocabulary": 5000}, "has pairs for "),
        ({"a.txt": "a b " * 99}, {"vocabulary": 100}, "must be 257 at least"),
        (
            {"a.txt": "a b " * 99},
            {"vocabulary": "words"},
            "must be bytes, a number of tokens from 257 on, or",
        ),
        ({"a.txt": "a b " * 99}, {"vocabulary": "no/such.json"}, "No such file or directory"),
        ({"a.txt": "a b " * 99}, {"length": 0}, "dataset.options.length=0: must be a whole number of tokens"),
        (
            {"a.txt": "a b " * 99},
            {"test_share": 1.0},
            "dataset.options.test_share=1.0: must be between 0 and 1",
        ),
        (
            {"train/a.txt": "a b " * 99, "val/b.txt": "a"},
            {},
            "a split has 2 tokens, too few for a sequence",
        ),
    ],
)
def test_what_is_no_text_is_refused_in_a_sentence(
    tmp_path: Path, files: dict[str, str | bytes], options: dict[str, Any], told: str
) -> None:
    with pytest.raises(DataError) as refused:
        read(tmp_path, files, **options)
    assert told in str(refused.value)


def test_files_of_another_ending_are_counted(tmp_path: Path) -> None:
    splits = read(tmp_path, {"a.txt": "".join(LINES), "b.md": "", "c/d.pdf": ""})
    assert splits.warnings == ("left out 2 files of another ending; the first is b.md",)


def test_the_stand_in_of_gcide_is_read_as_the_original_and_the_same_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    dataset = choice("gcide")
    for name, seed in (("one", 0), ("again", 0), ("other", 1)):
        (tmp_path / name).mkdir()
        gcide.write(tmp_path / name, fraction=0.001, seed=seed, options={})
    one, again, other = ((tmp_path / name / "gcide.dict").read_bytes() for name in ("one", "again", "other"))
    assert one == again != other and 1 << 18 <= len(one) < (1 << 18) + 1000
    splits = text.read(tmp_path / "one", {**dataset["options"], "source": "generated"})
    assert len(splits.train) >= 1900 and tokens(splits.test).shape[1] == 128
