"""Build an LSTM (Hochreiter & Schmidhuber 1997) that reads an image row by row, in torch."""

from __future__ import annotations

from torch import Tensor, nn


def layer_of(features: int, hidden: int) -> nn.LSTM:
    """Make a layer with the weights that Keras draws: it forgets little at first (Jozefowicz 2015)."""
    layer = nn.LSTM(features, hidden, batch_first=True)
    state = layer.state_dict()
    nn.init.xavier_uniform_(state["weight_ih_l0"])
    nn.init.orthogonal_(state["weight_hh_l0"])
    for name in ("bias_ih_l0", "bias_hh_l0"):
        nn.init.zeros_(state[name])
    # The forget gate's part of the first of two biases, which are added.
    state["bias_ih_l0"][hidden : 2 * hidden] = 1
    return layer


class RowLSTM(nn.Module):
    """A network from images [batch, channels, height, width] to logits [batch, classes].

    Each row is a step of time; its features are the row's pixels, channel by channel. The layers are LSTMs of
    their own, so that the model can be cut between them.
    """

    def __init__(self, features: int, classes: int, hidden: int, layers: int) -> None:
        super().__init__()
        sizes = [features, *[hidden] * (layers - 1)]
        self.layers = nn.ModuleList(layer_of(size, hidden) for size in sizes)
        self.head = nn.Linear(hidden, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits [batch, classes] of images, by the last layer's state after the last row."""
        rows = images.permute(0, 2, 1, 3).flatten(2)
        for layer in self.layers:
            rows, _ = layer(rows)
        return self.head(rows[:, -1])


def build(*, classes: int, shape: tuple[int, int, int], hidden: int, layers: int) -> nn.Module:
    """Build an LSTM of `layers` layers of `hidden` units for images of `shape` (height, width, channels)."""
    _, width, channels = shape
    return RowLSTM(width * channels, classes, hidden, layers)
