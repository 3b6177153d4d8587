"""Build ResNets in Keras: ResNet-18 as torchvision does, ResNet-50 and -101 from `keras.applications`.

ResNet-18 has torchvision's parameters, strides and padding. The two others differ from torchvision's by
Keras's design: every convolution has a bias, a stage halves the image in its first 1x1 convolution instead
of its first 3x3 one, and BatchNorm's running statistics keep 0.99 of themselves at each step instead of 0.9.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras import layers

KERNELS = {"3x3": 3, "7x7": 7, "small": 3}


def resnet18(*, classes: int, shape: tuple[int, int, int], stem: str, pretrained: None = None) -> keras.Model:
    """Build ResNet-18 of images [batch, height, width, channels] with logits [batch, classes].

    `shape` is (height, width, channels). The model has four stages of two blocks of two 3x3 convolutions
    (He 2016, Table 1). `stem` is `7x7`, or `3x3` or `small` for small images, as under torch.
    """
    inputs = keras.Input(shape)
    x = _convolve(inputs, 64, KERNELS[stem], 1 if stem == "small" else 2)
    x = layers.ReLU()(x)
    if stem != "small":
        # After ReLU nothing is below 0, so that 0 pads a maximum as well as minus infinity does.
        x = layers.MaxPooling2D(3, 2)(layers.ZeroPadding2D(1)(x))
    for stage, width in enumerate((64, 128, 256, 512)):
        for block in range(2):
            x = _block(x, width, 2 if stage and not block else 1)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(classes)(x))


def _block(x: Any, width: int, stride: int) -> Any:
    shortcut = x
    if stride > 1 or x.shape[-1] != width:
        shortcut = _convolve(x, width, 1, stride)
    x = layers.ReLU()(_convolve(x, width, 3, stride))
    return layers.ReLU()(layers.add([_convolve(x, width, 3, 1), shortcut]))


def _convolve(x: Any, width: int, kernel: int, stride: int) -> Any:
    """Apply a convolution and BatchNorm; padding "same" would pad a strided one on two sides only."""
    if kernel > 1:
        x = layers.ZeroPadding2D(kernel // 2)(x)
    # As in torchvision: fan out, for ReLU (He 2015). Each layer needs its own initializer: one gives the same
    # numbers each time.
    initial = keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal")
    x = layers.Conv2D(width, kernel, stride, use_bias=False, kernel_initializer=initial)(x)
    return layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x)


def resnet50(**options: Any) -> keras.Model:
    """Build ResNet-50 of `keras.applications`; see `_from_applications` for the options."""
    return _from_applications(keras.applications.ResNet50, **options)


def resnet101(**options: Any) -> keras.Model:
    """Build ResNet-101 of `keras.applications`; see `_from_applications` for the options."""
    return _from_applications(keras.applications.ResNet101, **options)


def _from_applications(
    builder: Callable[..., keras.Model],
    *,
    classes: int,
    shape: tuple[int, int, int],
    stem: str,
    pretrained: None = None,
) -> keras.Model:
    """Build a ResNet of images [batch, height, width, channels] with logits [batch, classes].

    `shape` is (height, width, channels). `stem` is `7x7`, the library's own, or another one for small images:
    `3x3` has a first kernel of 3x3, `small` also stride 1 and no max-pooling.
    """

    def stemmed(layer: keras.layers.Layer) -> keras.layers.Layer:
        config = layer.get_config()
        if layer.name == "conv1_pad":
            config["padding"] = KERNELS[stem] // 2
        if layer.name == "conv1_conv":
            config |= {"kernel_size": KERNELS[stem], "strides": 1 if stem == "small" else 2}
        if layer.name in ("pool1_pad", "pool1_pool") and stem == "small":
            return layers.Identity(name=layer.name)
        return layer.__class__.from_config(config)

    library = builder(include_top=False, weights=None, input_tensor=keras.Input(shape), pooling="avg")
    body = keras.models.clone_model(library, clone_function=stemmed)
    return keras.Model(body.input, layers.Dense(classes)(body.output))
