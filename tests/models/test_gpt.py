"""The transformer of text computes what a Llama does, and has the sizes that it says."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from src.config import ConfigError
from src.models import adapt
from src.models.torch.gpt import GPT
from src.runtime.torch import model_cost
from tests.support import config

TEXT = ("dataset=gcide", "dataset.source=generated")
SMALL = ("model.layers=2", "model.width=16", "model.heads=4", "model.hidden=24")
# Names of ours, as transformers has them.
LLAMA = {
    "embedding": "embed_tokens", "attention_norm": "input_layernorm",
    "feed_forward_norm": "post_attention_layernorm", "attention": "self_attn", "feed_forward": "mlp",
    "wq": "q_proj", "wk": "k_proj", "wv": "v_proj", "wo": "o_proj",
    "w1": "gate_proj", "w2": "down_proj", "w3": "up_proj",
}  # fmt: skip


def build(*words: str, length: int = 12, vocabulary: int = 50, name: str = "gpt") -> GPT:
    torch.manual_seed(0)
    return adapt.build(
        config(f"model={name}", *TEXT, *words), classes=vocabulary, shape=(length,), vocabulary=vocabulary
    )


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def tokens(samples: int = 2, length: int = 12) -> Tensor:
    return torch.randint(50, (samples, length), generator=torch.Generator().manual_seed(1))


def test_shapes() -> None:
    assert build()(tokens()).shape == (2, 12, 50)
    # Text may be shorter than what the model was built for.
    assert build()(tokens(length=5)).shape == (2, 5, 50)


def test_gpt_2_s_sizes_have_its_parameters_but_for_positions_and_biases() -> None:
    with torch.device("meta"):
        ours = count(build(length=1024, vocabulary=50_257, name="gpt2_124m"))
        untied = count(build("model.tied=false", length=1024, vocabulary=50_257, name="gpt2_124m"))
        gelu = count(build("model.activation=gelu", length=1024, vocabulary=50_257, name="gpt2_124m"))
    # The embedding; of a layer four projections, three matrices of 768 x 2048 and two norms; the last norm.
    assert ours == 50_257 * 768 + 12 * (4 * 768**2 + 3 * 768 * 2048 + 2 * 768) + 768 == 123_551_232
    # 3 x 2048 is 2 x 3072.
    assert gelu == ours and untied == ours + 50_257 * 768
    # GPT-2's 124,439,808 less learned positions, and less biases: of a layer's projections, feed-forward
    # layers and norms, and the last norm's.
    biases = 12 * (3 * 768 + 768 + 3072 + 768 + 2 * 768) + 768
    assert ours == 124_439_808 - 1024 * 768 - biases


def test_a_later_token_changes_no_earlier_answer() -> None:
    model = build("model.kv_heads=2")
    before, changed = tokens(), tokens()
    changed[:, 7] = (changed[:, 7] + 1) % 50
    answers, others = model(before), model(changed)
    assert torch.equal(answers[:, :7], others[:, :7])
    assert not torch.isclose(answers[:, 7:], others[:, 7:]).all(-1).any()


@pytest.mark.parametrize("kv_heads", [4, 1])
def test_flops_of_text_by_hand(kv_heads: int) -> None:
    model = build(*SMALL, f"model.kv_heads={kv_heads}")
    # Of a layer: queries and outputs, keys and values, three matrices of the feed-forward layer; the head.
    products = 2 * (2 * 16 * 16 + 2 * 16 * 4 * kv_heads + 3 * 16 * 24) + 16 * 50
    # A weight takes two FLOPs a token forward and four backward; attention two products of length x length x
    # width forward, and five backward (torch's formula, which doesn't halve them where they are causal).
    expected = 6 * 12 * products + 2 * 7 * 2 * 12 * 12 * 16
    assert model_cost.flops(model, [tokens()]) == expected
    if kv_heads == 4:
        assert expected == 72 * (2 * 2176 + 800) + 2 * 32_256 == 435_456


def test_the_answers_are_those_of_a_llama(in_float64: None) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2}
    options = {"rms_norm_eps": 1e-5, "rope_theta": 10_000.0, "max_position_embeddings": 12}
    llama = LlamaForCausalLM(LlamaConfig(vocab_size=50, num_hidden_layers=2, **sizes, **options)).double()
    ours = build(*SMALL, "model.kv_heads=2")
    for name, parameter in ours.named_parameters():
        nn.init.normal_(parameter, std=0.5)
        weight = parameter.data
        if ".wq." in name or ".wk." in name:
            # Theirs turns features i and i + 2 of a head of 4, ours neighbours.
            weight = weight.unflatten(0, (-1, 2, 2)).transpose(1, 2).flatten(0, 2)
        path = ".".join(LLAMA.get(part, part) for part in name.split("."))
        llama.get_parameter("lm_head.weight" if name == "head.weight" else f"model.{path}").data = weight
    # Their angles are of fp32.
    torch.testing.assert_close(ours(tokens()), llama(tokens()).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["model.heads=3"], "model.heads=3: must divide model.width=128; the nearest that does is 2"),
        (["model.kv_heads=3"], "model.kv_heads=3: must divide model.heads=4; the nearest that does is 2"),
        (["model.kv_heads=8"], "model.kv_heads=8: must divide model.heads=4; the nearest that does is 4"),
        (["model.heads=128"], "model.heads=128: leaves 1 of model.width=128 to a head"),
        (["model.kv_heads=1.5"], "model.kv_heads=1.5: must be a whole number"),
    ],
)
def test_heads_that_do_not_divide_evenly_are_refused(words: list[str], told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        build(*words)
    assert str(refused.value).startswith(told) and "\n" not in str(refused.value)


def test_images_are_refused() -> None:
    with pytest.raises(ConfigError, match="takes text, and the dataset has images"):
        adapt.build(config("model=gpt", *TEXT), classes=10, shape=(28, 28, 1))
