"""The baseline of text detection finds plain words, and its search is one for the best parameters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from bench import text_baseline
from bench.text_baseline import GRID, GRIDS, Scene, f_measure, scenes, search, total
from bench.text_finder import Parameters, candidate_letters, find, otsu
from src.tasks.torch.text_detection.matching import Counts
from tests.prepared_data import load_arrays
from tests.support import config

PLAIN = Parameters(
    window=0,
    offset=0,
    lowest=8,
    highest=50,
    widest=2.0,
    fullest=1.0,
    gap=0.4,
    ratio=2.0,
    shift=0.5,
    difference=255,
    letters=2,
    margin=0.0,
)
WORDS = ((20, 20, "SIGN", 30), (150, 60, "exit", 220))


def picture() -> tuple[np.ndarray, np.ndarray]:
    """Return an image [160, 240, 3] of a dark and a light word on grey, and their boxes [2, 4, 2]."""
    image = Image.new("L", (240, 160), 120)
    draw = ImageDraw.Draw(image)
    corners = []
    for x, y, text, level in WORDS:
        font = ImageFont.load_default(24)
        draw.text((x, y), text, fill=level, font=font)
        left, top, right, bottom = draw.textbbox((x, y), text, font=font)
        corners.append([[left, top], [right, top], [right, bottom], [left, bottom]])
    # Noise, and a wall that is no letter.
    draw.rectangle((0, 140, 239, 159), fill=20)
    draw.point([(5, 5), (100, 80), (200, 10)], fill=255)
    return np.repeat(np.asarray(image)[..., None], 3, axis=2), np.array(corners, dtype=np.float32)


@pytest.mark.parametrize(("window", "offset"), [(31, 10), (45, 20)])
def test_words_of_both_polarities_are_found(window: int, offset: int) -> None:
    image, words = picture()
    parameters = Parameters(**{**vars(PLAIN), "window": window, "offset": offset})
    assert total([Scene(image, words, np.zeros(2))], parameters) == Counts(2, 2, 2)


def test_otsu_finds_the_words_that_one_level_tells_from_the_rest() -> None:
    image, words = picture()
    # The light word, or the dark one: one level can't tell both from grey.
    counts = total([Scene(image, words, np.zeros(2))], PLAIN)
    assert counts.matched == 1


def test_otsu_leaves_the_least_variance() -> None:
    grey = np.random.default_rng(0).normal([[60], [170]], 30, (2, 500)).clip(0, 255).astype(np.uint8)

    def within(level: int) -> float:
        parts = grey[grey <= level], grey[grey > level]
        return sum(part.size * part.var() for part in parts if part.size)

    assert within(otsu(grey)) == pytest.approx(min(map(within, range(256))), rel=1e-12)


def test_nothing_is_found_in_an_empty_image() -> None:
    for window in (0, 21):
        found = find(candidate_letters(np.full((64, 64, 3), 99, np.uint8), window, 10), PLAIN)
        assert found.shape == (0, 4, 2)


def test_a_margin_widens_a_word_at_each_side() -> None:
    components = candidate_letters(picture()[0], 31, 10)
    narrow = find(components, PLAIN)
    wide = find(components, Parameters(**{**vars(PLAIN), "margin": 2.0}))
    assert np.allclose(np.ptp(wide, axis=1), np.ptp(narrow, axis=1) + 4)


def test_the_f_measure_is_that_of_precision_and_recall() -> None:
    # 2/4 of what is found, 2/8 of the words: 2 * 1/2 * 1/4 over 3/4.
    assert f_measure(Counts(2, 4, 8)) == pytest.approx(1 / 3)
    assert f_measure(Counts(0, 0, 0)) == 0


def test_the_search_ends_where_no_parameter_alone_is_better() -> None:
    image, words = picture()
    some = [Scene(image, words, np.zeros(2))]
    grid = {**GRID, "window": (0, 31), "offset": (10,)}
    best = search(some, grid, draws=3)
    assert total(some, best) == Counts(2, 2, 2) and search(some, grid, draws=3) == best


@pytest.mark.slow
def test_the_scenes_are_those_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("dataset=icdar2013", "dataset.source=generated", "dataset.size=128", "model=east")
    data = load_arrays(config(*words).dataset)
    first = data.train.read(slice(1))
    (scene,) = scenes(data.train, 1)
    number = int(first.targets[1][0])
    readable = number - int(first.targets[2][0, :number].sum())
    assert scene.count(PLAIN).words == readable > 0
    monkeypatch.setattr(text_baseline.runs, "OUT", tmp_path)
    few = {name: values[:2] for name, values in GRID.items()}
    grids = {name: {**few, "window": grid["window"][:2], "offset": (10,)} for name, grid in GRIDS.items()}
    monkeypatch.setattr(text_baseline, "GRIDS", grids)
    monkeypatch.setattr("sys.argv", ["", "--draws=2", "--scenes=2", *words, "dataset.test_limit=2"])
    assert text_baseline.main() == 0
    printed = capsys.readouterr().out
    assert "| Otsu's |" in printed and "| mean of a window |" in printed
    assert (tmp_path / "text_baseline.md").read_text() == printed
