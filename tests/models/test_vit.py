"""The vision transformer computes what torchvision's does, and has the sizes that it says."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from src.config import ConfigError
from src.models import adapt
from src.models.torch.vit import ViT
from src.runtime.torch import model_cost
from tests.support import config

SMALL = ("model.layers=2", "model.width=16", "model.heads=4", "model.hidden=24", "model.patch=7")


def build(*words: str, shape: tuple[int, ...] = (28, 28, 1)) -> ViT:
    torch.manual_seed(0)
    return adapt.build(config("model=vit", *words), classes=10, shape=shape)


def test_shapes() -> None:
    assert build()(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    # 7 x 4 patches, and the model's own token.
    wide = build(shape=(28, 16, 3))
    assert wide(torch.zeros(2, 3, 28, 16)).shape == (2, 10) and wide.positions.shape == (1, 29, 64)


def test_vit_b_16_has_the_parameters_of_torchvisions() -> None:
    with torch.device("meta"):
        model = adapt.build(config("model=vit_b_16"), classes=1000, shape=(224, 224, 3))
    assert sum(parameter.numel() for parameter in model.parameters()) == 86_567_656


def test_flops_of_images_by_hand() -> None:
    model = build(*SMALL)
    # 16 patches and a token of the model's own; the head reads that alone, and patches need no gradient.
    patches, layers, head = 49 * 16, 2 * (4 * 16 * 16 + 2 * 16 * 24), 16 * 10
    expected = 4 * 16 * patches + 6 * 17 * layers + 6 * head + 2 * 7 * 2 * 17 * 17 * 16
    assert model_cost.flops(model, [torch.randn(2, 1, 28, 28)]) == expected


def test_the_answers_are_those_of_torchvisions_vision_transformer(in_float64: None) -> None:
    from torchvision.models import VisionTransformer

    theirs = VisionTransformer(28, 7, 2, 4, 16, 24, num_classes=10)
    ours = build(*SMALL, shape=(28, 28, 3))
    for parameter in ours.parameters():
        nn.init.normal_(parameter, std=0.5)
    state = {
        "class_token": ours.class_token, "encoder.pos_embedding": ours.positions,
        **{f"conv_proj.{name}": value for name, value in ours.patches.named_parameters()},
        **{f"encoder.ln.{name}": value for name, value in ours.norm.named_parameters()},
        **{f"heads.head.{name}": value for name, value in ours.head.named_parameters()},
    }  # fmt: skip
    for number, layer in enumerate(ours.layers):
        at, attention, ahead = f"encoder.layers.encoder_layer_{number}", layer.attention, layer.feed_forward
        projections = (attention.wq, attention.wk, attention.wv)
        for kind in ("weight", "bias"):
            joined = torch.cat([getattr(each, kind) for each in projections])
            state |= {
                f"{at}.self_attention.in_proj_{kind}": joined,
                f"{at}.self_attention.out_proj.{kind}": getattr(attention.wo, kind),
                f"{at}.ln_1.{kind}": getattr(layer.attention_norm, kind),
                f"{at}.ln_2.{kind}": getattr(layer.feed_forward_norm, kind),
                f"{at}.mlp.0.{kind}": getattr(ahead.w1, kind),
                f"{at}.mlp.3.{kind}": getattr(ahead.w2, kind),
            }
    theirs.load_state_dict(state)
    images = torch.randn(2, 3, 28, 28)
    torch.testing.assert_close(ours(images), theirs(images), rtol=1e-10, atol=1e-12)


def test_what_is_no_model_of_the_images_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^model\.patch=8: must divide the images' 28 x 28 pixels; .* 7$"):
        build("model.patch=8")
    # Both sides of an image.
    with pytest.raises(ConfigError, match=r"^model\.patch=4: must divide the images' 28 x 30 pixels; .* 2$"):
        build(shape=(28, 30, 1))
    with pytest.raises(ConfigError, match=r"^model\.heads=5: must divide model\.width=64; .* 4$"):
        build("model.heads=5")
    with pytest.raises(ConfigError, match="takes images, and the dataset is text"):
        build(shape=(128,))
