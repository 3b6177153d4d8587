"""What the models see: which runs' pictures stand on a study's page, how large, and what is said of them."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from src.report import pictures
from tests.report.conftest import Study

TEXT = {"task": "text_segmentation", "metric": "f_measure"}
HEADING = '<h2 id="pictures">'


def draw(folder: Path, colour: tuple[int, int, int] = (200, 30, 30)) -> None:
    Image.new("RGB", (460, 226), colour).save(folder / "predictions.png")


def seen(study: Study, cell: str, strategy: str = "single", **known: Any) -> None:
    """Writes a run of a text task that has a picture."""
    draw(study.run(cell, strategy, **TEXT | known))


def captions(html: str) -> list[str]:
    return re.findall(r"<figcaption>(.*?); <code>", html)


def shown(html: str) -> list[Image.Image]:
    found = re.findall(r'src="data:image/webp;base64,([^"]*)"', html)
    return [Image.open(io.BytesIO(base64.b64decode(each))).convert("RGB") for each in found]


def test_strategies_stand_below_each_other_with_their_scores(empty_study: Study) -> None:
    draw(empty_study.run("single", **TEXT, score=0.43125), (200, 30, 30))
    draw(empty_study.run("ddp", "ddp", workers=2, **TEXT, score=0.5), (30, 30, 200))
    html = empty_study.page()
    assert re.findall("<summary>(.*)</summary>", html) == ["cnn on mnist (original), text_segmentation"]
    assert captions(html) == [
        "single, 1 w, batch 128: <b>f_measure 0.4313</b>",
        "ddp, 2 w, batch 128: <b>f_measure 0.5000</b>",
    ]
    assert [image.size for image in shown(html)] == [(460, 226)] * 2
    for image, colour in zip(shown(html), [(200, 30, 30), (30, 30, 200)], strict=True):
        np.testing.assert_allclose(np.asarray(image)[100, 100], colour, atol=8)
    assert 'alt="What cnn on mnist (original), text_segmentation sees in the first test images' in html
    assert "<code>runs/ddp/predictions.png</code>" in html
    assert " more run" not in html


def test_a_picture_is_scaled_to_its_bounds(empty_study: Study) -> None:
    folder = empty_study.run("single", **TEXT)
    # Noise, which no encoding makes small.
    noise = np.random.default_rng(0).integers(0, 256, (772, 2572, 3), dtype=np.uint8)
    Image.fromarray(noise).save(folder / "predictions.png")
    html = empty_study.page()
    (image,) = shown(html)
    assert image.width < pictures.WIDTH
    assert abs(image.height / image.width - 772 / 2572) < 0.01
    (encoded,) = re.findall(r'webp;base64,([^"]*)"', html)
    assert 0.4 * pictures.MOST_BYTES < 0.75 * len(encoded) <= pictures.MOST_BYTES + 2


def test_runs_without_a_readable_picture_are_left_out(empty_study: Study) -> None:
    empty_study.run("tf-single", "tf_single", framework="tensorflow", **TEXT)
    seen(empty_study, "crashed", status="failed")
    empty_study.declare("absent", strategy="single", model="cnn", dataset="mnist")
    assert HEADING not in empty_study.page()
    for cell, damage in (("torn", lambda whole: whole[: len(whole) // 2]), ("empty", lambda _: b"")):
        seen(empty_study, cell)
        path = empty_study.directory / "runs" / cell / "predictions.png"
        path.write_bytes(damage(path.read_bytes()))
    assert HEADING not in empty_study.page()
    seen(empty_study, "diverged", status="diverged")
    assert captions(empty_study.page()) == ["single, 1 w, batch 128: <b>f_measure -</b>"]


def test_of_repetitions_the_first_with_a_picture_is_shown(empty_study: Study) -> None:
    for repetition in (1, 2, 3):
        declared = {"configuration": "single", "repetition": repetition}
        seen(empty_study, f"single-r{repetition}", declared=declared, score=repetition / 10)
    html = empty_study.page()
    assert captions(html) == ["single, 1 w, batch 128: <b>f_measure 0.1000</b>"]
    assert "and those of 2 more runs are" in html
    (empty_study.directory / "runs/single-r1/predictions.png").unlink()
    html = empty_study.page()
    assert captions(html) == ["single, 1 w, batch 128: <b>f_measure 0.2000</b>"]
    assert "and those of 1 more run are" in html


def test_each_strategy_has_a_picture_before_any_has_more(empty_study: Study) -> None:
    for batch in range(1, pictures.PICTURES + 1):
        seen(empty_study, f"single-{batch}", batch=batch)
    seen(empty_study, "ddp", "ddp", workers=2)
    seen(empty_study, "elsewhere", data_source="generated")
    html = empty_study.page()
    assert captions(html) == [
        *(f"single, 1 w, batch {batch}: <b>f_measure -</b>" for batch in range(1, pictures.PICTURES - 1)),
        "ddp, 2 w, batch 128: <b>f_measure -</b>",
        "single, 1 w, batch 128: <b>f_measure -</b>",
    ]
    assert html.count("<summary>") == 2
    assert "and those of 2 more runs are" in html


def test_a_classification_has_one_picture_folded_away(empty_study: Study) -> None:
    classified = {"task": "classification", "metric": "accuracy", "score": 0.94}
    for cell, strategy in (("single", "single"), ("ddp", "ddp")):
        seen(empty_study, cell, strategy, **classified)
    html = empty_study.page()
    assert captions(html) == ["single, 1 w, batch 128: <b>accuracy 0.9400</b>"]
    assert re.findall("<details(?: open)?>", html) == ["<details>"]
    seen(empty_study, "text", score=0.5)
    assert re.findall("<details(?: open)?>", empty_study.page()) == ["<details>", "<details open>"]


def test_the_same_runs_make_the_same_page(empty_study: Study) -> None:
    seen(empty_study, "single", score=0.5)
    assert empty_study.page() == empty_study.page()
