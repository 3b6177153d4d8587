"""The models of conf/model/ have the papers' sizes, alike in both frameworks."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from src.config import ConfigError
from src.models import adapt
from tests.support import config, run_ranks

SHAPE = (28, 28, 1)
# Convolutions 5*5*1*20 + 20 and 5*5*20*50 + 50, dense 4*4*50*500 + 500 and 500*10 + 10.
CNN = 520 + 25_050 + 400_500 + 5_010
# 784*128 + 128 and 128*10 + 10.
MLP = 100_480 + 1_290
# Stages of two blocks of two 3x3 convolutions with BatchNorm (weight and bias); from the second stage
# on the first block halves the image, with a 1x1 convolution and a BatchNorm on its shortcut.
STAGES = sum(
    9 * before * width
    + 3 * 9 * width * width
    + 4 * 2 * width
    + (0 if before == width else before * width + 2 * width)
    for before, width in ((64, 64), (64, 128), (128, 256), (256, 512))
)
# The stem's 3x3 convolution on one channel and its BatchNorm; 512 features to 10 classes.
RESNET18 = 9 * 1 * 64 + 2 * 64 + STAGES + 512 * 10 + 10


def build(*words: str, classes: int = 10, shape: tuple[int, int, int] = SHAPE) -> nn.Module:
    return adapt.build(config(*words), classes=classes, shape=shape)


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("words", "parameters"),
    [
        (["model=cnn"], CNN),
        (["model=mlp"], MLP),
        (["model=resnet18"], RESNET18),
        (["model=resnet18", "model.stem=7x7"], RESNET18 + (49 - 9) * 64),
        (["model=mlp", "model.hidden=32"], 784 * 32 + 32 + 32 * 10 + 10),
    ],
)
def test_parameters_and_output_shape(words: list[str], parameters: int) -> None:
    model = build(*words)
    assert count(model) == parameters
    assert model(torch.zeros(3, 1, 28, 28)).shape == (3, 10)


def test_the_worked_numbers_are_the_known_ones() -> None:
    assert (CNN, MLP) == (431_080, 101_770)
    # torchvision's 11,689,512: 7x7 on 3 channels instead of 3x3 on 1, 1000 classes instead of 10.
    assert RESNET18 + (49 * 3 - 9) * 64 + 990 * 513 == 11_689_512


@pytest.mark.parametrize(("stem", "kernel", "padding"), [("3x3", 3, 1), ("7x7", 7, 3)])
def test_both_stems_halve_the_image(stem: str, kernel: int, padding: int) -> None:
    first = build("model=resnet18", f"model.stem={stem}").conv1
    assert (first.kernel_size, first.stride, first.padding) == ((kernel,) * 2, (2, 2), (padding,) * 2)
    assert first(torch.zeros(1, 1, 28, 28)).shape == (1, 64, 14, 14)


@pytest.mark.parametrize("name", ["cnn", "mlp", "resnet18"])
def test_models_follow_the_datas_shape_and_classes(name: str) -> None:
    model = build(f"model={name}", classes=7, shape=(32, 32, 3))
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 7)


def test_the_cnn_says_when_images_are_too_small() -> None:
    assert build("model=cnn", shape=(16, 16, 1))(torch.zeros(1, 1, 16, 16)).shape == (1, 10)
    with pytest.raises(ValueError, match="at least 16x16, got 15x28"):
        build("model=cnn", shape=(15, 28, 1))


def test_an_import_path_gets_the_number_of_classes_and_the_datas_channels() -> None:
    model = build("model=custom", "model.path=torchvision.models.resnet34", classes=7)
    assert model.conv1.in_channels == 1
    assert model(torch.zeros(2, 1, 64, 64)).shape == (2, 7)
    colour = build("model=custom", "model.path=torchvision.models.resnet34", shape=(64, 64, 3))
    assert colour.conv1.in_channels == 3


class Grey(nn.Module):
    """Makes colours of grey itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 10)

    def forward(self, images: Tensor) -> Tensor:
        colours = images if images.shape[1] == 3 else images.repeat(1, 3, 1, 1)
        return self.head(self.first(colours).mean((2, 3)))


def spectral(classes: int) -> nn.Module:
    return nn.Sequential(
        parametrizations.spectral_norm(nn.Conv2d(3, 4, 3)), nn.Flatten(), nn.LazyLinear(classes)
    )


def reflecting(classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), nn.Flatten(), nn.LazyLinear(classes)
    )


def test_a_first_convolution_that_is_more_is_not_replaced() -> None:
    here = "model.path=tests.models.test_models"
    assert build("model=custom", f"{here}.Grey", shape=(28, 28, 1)).first.in_channels == 3
    for name, why in (("spectral", "is a Parametrized"), ("reflecting", "has padding_mode=reflect")):
        with pytest.raises(
            ConfigError, match=rf"{name}: its first convolution, 0, takes 3 channels, .*; it {why}"
        ):
            build("model=custom", f"{here}.{name}", shape=(28, 28, 1))
        build("model=custom", f"{here}.{name}", shape=(28, 28, 3))


def test_options_reach_the_callable() -> None:
    words = ("model=custom", "model.path=torch.nn.LazyLinear", "+model.options.out_features=4")
    assert build(*words)(torch.zeros(2, 9)).shape == (2, 4)
    # They come before the data's number of classes.
    words = ("model=custom", "model.path=torchvision.models.resnet18", "+model.options.num_classes=12")
    assert build(*words).fc.out_features == 12


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("math.pi", "model.path=math.pi: is a float, not a callable"),
        (
            "collections.Counter",
            r"model.path=collections.Counter: returned a Counter, not a torch\.nn\.Module",
        ),
    ],
)
def test_a_path_that_names_no_model_is_said(path: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build("model=custom", f"model.path={path}")


@pytest.fixture(scope="module")
def keras_says(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("frameworks")
    for framework in ("torch", "keras"):
        # They never share a process.
        strategy = "strategy=single" if framework == "torch" else "strategy=tf_single"
        run_ranks(f"tests.models.{framework}_process", [folder], world=1, logs=folder, words=[strategy])
    return json.loads((folder / "keras.json").read_text())


@pytest.mark.slow
def test_keras_twins_have_the_same_sizes(keras_says: dict[str, Any]) -> None:
    twins = {name: count(build(f"model={name}")) for name in ("cnn", "mlp", "resnet18", "mobilenet_v2")}
    # keras.applications gives each convolution of a ResNet a bias; torchvision has BatchNorm's alone.
    biased = {
        name: count(model) + sum(m.out_channels for m in model.modules() if isinstance(m, nn.Conv2d))
        for name, model in ((name, build(f"model={name}")) for name in ("resnet50", "resnet101"))
    }
    assert keras_says["parameters"] == {**twins, **biased}
    assert {tuple(shape) for shape in keras_says["shapes"].values()} == {(None, 10)}


@pytest.mark.slow
def test_keras_stems_are_those_of_the_torch_twins(keras_says: dict[str, Any]) -> None:
    resnet18 = {"3x3": RESNET18, "7x7": RESNET18 + (49 - 9) * 64, "small": RESNET18}
    parameters = keras_says["stems"]
    assert {stem: parameters[f"resnet18 {stem}"] for stem in resnet18} == resnet18
    assert parameters["resnet50 7x7"] - parameters["resnet50 3x3"] == (49 - 9) * 64
    # Stride 1 keeps the image's size.
    assert keras_says["small"] == [[None, 28, 28, 64], [None, 28, 28, 64], [None, 28, 28, 32]]


@pytest.mark.slow
def test_keras_models_by_import_path(keras_says: dict[str, Any]) -> None:
    assert keras_says["custom"] == [None, 10]
    assert keras_says["mistakes"] == [
        "model.path=math.pi: is a float, not a callable",
        "model.path=collections.Counter: returned a Counter, not a keras.Model",
    ]


@pytest.mark.slow
def test_keras_models_are_looked_at_before_they_train(keras_says: dict[str, Any]) -> None:
    own = "model.path=tests.models.own_keras."
    said = {
        "OwnStep": f"{own}OwnStep: has a train_step of its own, which would not be used; leave it away",
        "two_outputs": f"{own}two_outputs: returns 2 outputs, and one is trained, the logits",
        "five_outputs": f"{own}five_outputs: returns [4, 5] for 4 samples of 10 classes",
    }
    looks = keras_says["looks"]
    assert {name: looks[name] for name in said} == said
    assert "returns probabilities, which add up to 1, and the loss takes logits" in looks["softmax"]
    assert "keeps its state from batch to batch" in looks["stateful"]
    nothing = {"draws_random_numbers": False, "moves_buffers": [], "computes_over_batch": False}
    for name in ("Subclassed", "unbuilt", "regularised", "normalised"):
        assert looks[name] == nothing, name
    assert looks["dropout"] == nothing | {"draws_random_numbers": True}
    assert looks["centred"] == nothing | {"computes_over_batch": True}
    assert looks["counting"] == nothing | {"moves_buffers": ["counting/calls"]}


@pytest.mark.slow
def test_a_keras_model_that_is_another_one_in_stages_is_refused(keras_says: dict[str, Any]) -> None:
    cuts = keras_says["cuts"]
    assert cuts["Subclassed"] == "the model can't be cut: it is no Sequential or functional Keras model"
    assert cuts["forgetful"] == "the model can't be cut as it is: an output is another one in stages"
    assert cuts["unbuilt"] == keras_says["looks"]["unbuilt"]
    assert cuts["counting"] == keras_says["looks"]["counting"]
    assert cuts["masked"].startswith("the model can't be cut: Keras can't make stages of its layers (Graph")
    assert cuts["drawing"]["draws_random_numbers"]


@pytest.mark.slow
def test_synchronised_statistics_are_refused_where_they_would_not_be(keras_says: dict[str, Any]) -> None:
    single, *others = keras_says["synchronised"]
    assert single == keras_says["looks"]["normalised"]
    assert all(
        "norm has synchronized=True, which not all strategies do; build it without" in o for o in others
    )


@pytest.mark.slow
def test_both_frameworks_train_alike_from_the_same_weights(keras_says: dict[str, Any]) -> None:
    losses, reference = keras_says["losses"], keras_says["torch_losses"]
    assert len(losses) == 10
    # They sum in different orders; 1e-4 is the bound that a study's parity column has too.
    assert losses == pytest.approx(reference, rel=1e-4, abs=1e-4)
    assert reference[-1] < reference[0]
