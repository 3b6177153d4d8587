"""Build MobileNetV2 of `keras.applications`, with torchvision's dropout before its classes.

The model has torchvision's parameters. By Keras's design its strided convolutions pad on the right and at the
bottom first, and BatchNorm's running statistics keep 0.999 of themselves at each step instead of 0.9:
after a short training they lag behind, and the test accuracy with them.
"""

from __future__ import annotations

import keras
from keras import layers


def build(
    *, classes: int, shape: tuple[int, int, int], stem: str, dropout: float, pretrained: None = None
) -> keras.Model:
    """Build a model of images [batch, height, width, channels] with logits [batch, classes].

    `shape` is (height, width, channels). `stem="small"` gives the first convolution stride 1.
    """

    def stemmed(layer: keras.layers.Layer) -> keras.layers.Layer:
        config = layer.get_config()
        if layer.name == "Conv1" and stem == "small":
            config["strides"] = 1
        return layer.__class__.from_config(config)

    library = keras.applications.MobileNetV2(
        include_top=False, weights=None, input_tensor=keras.Input(shape), pooling="avg"
    )
    body = keras.models.clone_model(library, clone_function=stemmed)
    return keras.Model(body.input, layers.Dense(classes)(layers.Dropout(dropout)(body.output)))
