"""Models of Hugging Face's transformers fit the data, or are refused in a sentence, and begin by the seed."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from src.config import ConfigError, command_line, compose
from src.models.torch import huggingface
from tests.support import config

TEXT = {"classes": 300, "shape": (16,), "vocabulary": 300}
CLASSES = {"classes": 5, "shape": (16,), "vocabulary": 300}
IMAGES = {"classes": 5, "shape": (28, 28, 1), "vocabulary": None}
GPT2 = {"n_layer": 1, "n_embd": 8, "n_head": 2}
BERT = {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8}


def build(architecture: str | None, data: dict[str, Any], **options: Any) -> nn.Module:
    named = {key: options.pop(key, None) for key in ("config", "pretrained")}
    return huggingface.build(architecture=architecture, **named, **data, options=options)


def test_what_follows_from_the_data_is_set() -> None:
    torch.manual_seed(0)
    text = build("GPT2LMHeadModel", {**TEXT, "shape": (2000,)}, **GPT2).config
    assert (text.vocab_size, text.n_positions, text.use_cache, text.n_layer) == (300, 2000, False, 1)
    # No shorter than the library has it.
    assert build("GPT2LMHeadModel", TEXT, **GPT2).config.n_positions == 1024
    labels = build("GPT2ForSequenceClassification", CLASSES, **GPT2).config
    assert (labels.num_labels, labels.vocab_size, labels.pad_token_id) == (5, 300, 0)
    images = build("ViTForImageClassification", IMAGES, **BERT).config
    assert (images.image_size, images.num_channels, images.num_labels) == (28, 1, 5)
    wide = build("ViTForImageClassification", {**IMAGES, "shape": (32, 64, 3)}, **BERT)
    assert wide(torch.zeros(2, 3, 32, 64)).logits.shape == (2, 5)
    # By the name that another library's fields have.
    assert build("GPT2LMHeadModel", TEXT, **GPT2, max_position_embeddings=64).config.n_positions == 64


@pytest.mark.parametrize(
    ("architecture", "data", "options", "told"),
    [
        ("GPT2LMHeadModle", TEXT, {}, "has no such model; did you mean GPT2LMHeadModel?"),
        ("GPT2Config", TEXT, {}, "has no such model"),
        ("GPT2LMHeadModel", TEXT, {"n_lyer": 2}, "GPT2Config has no such field; did you mean n_layer?"),
        ("GPT2LMHeadModel", TEXT, {"n_layer": "four"}, "Field 'n_layer' expected int, got str"),
        ("GPT2LMHeadModel", TEXT, {"n_head": 5}, "`embed_dim` must be divisible by num_heads"),
        ("GPT2LMHeadModel", TEXT, {**GPT2, "vocab_size": 20}, "vocab_size=20: the dataset has 300 tokens"),
        ("GPT2LMHeadModel", TEXT, {**GPT2, "n_positions": 8}, "choose dataset.options.length=8 or less"),
        ("BertForSequenceClassification", CLASSES, {**BERT, "num_labels": 4}, "the dataset has 5 classes"),
        ("ViTForImageClassification", IMAGES, {**BERT, "image_size": 64}, "choose dataset.size=64"),
        ("ViTForImageClassification", IMAGES, {**BERT, "num_channels": 3}, "the dataset's images have 1"),
        ("GPT2LMHeadModel", IMAGES, {}, "takes text, and the dataset has images"),
        ("ViTForImageClassification", TEXT, {}, "takes images, and the dataset is text"),
        ("Wav2Vec2ForCTC", TEXT, {}, "takes input_values, and datasets here are text or images"),
        ("GPT2Model", TEXT, GPT2, "gives features and no logits; choose one with a head"),
        ("T5ForConditionalGeneration", TEXT, {"num_layers": 1, "d_model": 8}, "has an encoder and a decoder"),
    ],
)
def test_mistakes_are_sentences(
    architecture: str, data: dict[str, Any], options: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        build(architecture, data, **options)
    assert told in str(refused.value) and "\n" not in str(refused.value)
    assert str(refused.value).startswith("model.")


def written(folder: Path, **fields: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(fields))
    return path


def test_a_configuration_names_the_architecture_and_what_it_says_counts(tmp_path: Path) -> None:
    known = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 500, **GPT2}
    path = written(tmp_path, **known, torch_dtype="bfloat16")
    model = build(None, TEXT, config=str(path))
    assert isinstance(model, transformers.GPT2LMHeadModel) and model.config.vocab_size == 500
    # In the run's own precision, whatever the configuration's authors trained in.
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert build(None, TEXT, config=str(path), n_layer=2).config.n_layer == 2
    for fields, told in (
        ({**known, "vocab_size": 99}, "the configuration's vocab_size=99: the dataset has 300 tokens"),
        ({**known, "n_positions": 9}, "the configuration's n_positions=9: the dataset's sequences have 16"),
        ({"model_type": "gtp2"}, "is no configuration that transformers knows"),
        ({"model_type": "gpt2"}, "names no architecture; give model.architecture=NAME"),
        ({"model_type": "gpt2", "architectures": ["BertForMaskedLM"]}, "takes a BertConfig, and the"),
    ):
        with pytest.raises(ConfigError) as refused:
            build(None, TEXT, config=str(written(tmp_path, **fields)))
        assert told in str(refused.value)


def test_weights_of_a_folder_are_taken_where_they_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(1)
    saved = build("GPT2ForSequenceClassification", CLASSES, **GPT2)
    saved.to(torch.bfloat16).save_pretrained(tmp_path)
    for classes in (5, 3):
        torch.manual_seed(2)
        model = build(None, {**CLASSES, "classes": classes}, pretrained=str(tmp_path))
        # They were saved in half precision, and train in the run's.
        assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
        own, theirs = model.state_dict(), saved.state_dict()
        different = [name for name in own if own[name].shape != theirs[name].shape]
        assert different == ([] if classes == 5 else ["score.weight"])
        same = [name for name in own if name not in different]
        assert all(torch.equal(own[name], theirs[name].float()) for name in same)
    assert "with the seed's values: score.weight" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="no file named"):
        (tmp_path / "model.safetensors").unlink()
        build(None, CLASSES, pretrained=str(tmp_path))


def test_weights_are_the_seeds() -> None:
    def weights(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        model = build("GPT2LMHeadModel", TEXT, **GPT2)
        return nn.utils.parameters_to_vector(model.parameters())

    assert torch.equal(weights(0), weights(0)) and not torch.equal(weights(0), weights(1))


def test_a_hub_that_cant_be_reached_is_told_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(huggingface, "_unreachable", lambda: "this run's namespace has no network")
    started = time.monotonic()
    for key in ("config", "pretrained"):
        with pytest.raises(
            ConfigError, match=f"model.{key}=someone/some-model-of-theirs: no such file or folder"
        ):
            build("GPT2LMHeadModel", TEXT, **{key: "someone/some-model-of-theirs"})
    assert time.monotonic() - started < 5


GCIDE = ("dataset=gcide", "dataset.source=generated")


def test_its_name_is_that_of_its_architecture(tmp_path: Path) -> None:
    path = written(tmp_path, architectures=["LlamaForCausalLM"])
    for word, name in (
        ("model.architecture=GPT2LMHeadModel", "GPT2LMHeadModel"),
        (f"model.config={path}", "LlamaForCausalLM"),
        (f"model.pretrained={tmp_path}", "LlamaForCausalLM"),
        ("model.config=someone/gpt2-small", "gpt2-small"),
    ):
        chosen = config("model=huggingface", word, *GCIDE)
        assert chosen.model["name"] == name and chosen.task["name"] == "next_token"
        assert f"-{name}-gcide-" in chosen.out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "model=huggingface: needs model.architecture=NAME"),
        (
            ("model.config=no/such/config.json",),
            "model.config=no/such/config.json: no such file, and no name",
        ),
        (("model.config=./mine",), "model.config=./mine: no such file, and no name at a hub"),
        (("model.pretrained=one/two/three",), "no such folder, and no name at a hub"),
        (("model.pretrained=broken.json",), "is no folder; name the one with config.json and the weights"),
        (("model.config=broken.json",), "model.config=broken.json: is no JSON"),
        (
            ("model.architecture=GPT2LMHeadModel", "strategy=tf_single"),
            "exists for torch and strategy tf_single",
        ),
        (("model.architecture=GPT2LMHeadModel", "model=cnn"), "model.architecture"),
    ],
)
def test_what_is_named_is_looked_for_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: tuple[str, ...], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ConfigError) as refused:
        config("model=huggingface", *GCIDE, *words)
    assert told in str(refused.value) and "\n" not in str(refused.value)


def test_without_the_library_a_line_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = SimpleNamespace(util=SimpleNamespace(find_spec=lambda name: None))
    monkeypatch.setattr("src.config.huggingface.importlib", missing)
    with pytest.raises(ConfigError, match=r"needs transformers, which isn't installed: pip install -c const"):
        config("model=huggingface", "model.architecture=GPT2LMHeadModel", *GCIDE)


def test_a_model_of_images_here_is_refused_with_text() -> None:
    with pytest.raises(ConfigError, match="of the models here huggingface, gpt, gpt2_124m do"):
        compose.cells(command_line.parse(["model=cnn", *GCIDE]))


def test_attention_on_a_cpu_counts_among_the_flops() -> None:
    from src.runtime.torch import model_cost

    torch.manual_seed(0)
    # With dropout attention is several products, which always counted.
    model = build("GPT2LMHeadModel", TEXT, **GPT2, attn_pdrop=0.0)
    tokens = torch.zeros(2, 16, dtype=torch.int64)
    products = sum(
        parameter.numel()
        for name, parameter in model.named_parameters()
        if parameter.ndim == 2 and "wpe" not in name
    )
    # Each weight: twice forward, four times backward. Attention, by torch's formula: two products of length
    # x length x width forward, and five backward.
    assert model_cost.flops(model, [tokens]) == 6 * 16 * products + 7 * 2 * 16 * 16 * 8
