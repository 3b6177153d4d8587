"""Read a row of a table: one configuration, whose step is to be predicted or was measured."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from src.config.mistakes import ConfigError, nearest

TRANSFORMER = "transformer"
# The columns without which no row can be predicted.
REQUIRED = ("device", "devices", "model", "global_batch")
# What a column of text may say besides true and false.
YES, NO = ("true", "1", "yes"), ("false", "0", "no")


def _flag(value: Any) -> Any:
    word = str(value).strip().lower()
    return True if word in YES else False if word in NO else value


def _numbers(value: Any) -> Any:
    if isinstance(value, str):
        return tuple(word for word in re.split(r"[\s,;|/\[\]()]+", value.strip()) if word)
    return value


def _lower(value: Any) -> Any:
    return value.strip().lower() if isinstance(value, str) else value


Count = Annotated[int, Field(ge=1, le=10**9)]
Positive = Annotated[float, Field(gt=0, le=1e30, allow_inf_nan=False)]
Flag = Annotated[bool, BeforeValidator(_flag)]


class Row(BaseModel):
    """A configuration, and what a step of it took where that was measured; `None` is not given.

    Attributes:
        device: name of a data sheet, of which there are `devices`, `devices_per_node` on a node.
        network: between nodes: name of a data sheet, or GB/s a device.
        model: a name, or `transformer`, with `layers`, `hidden`, `heads`, `kv_heads`, `ffn` (width of the
            feed-forward part), `sequence` (tokens of a sample) and `vocabulary`.
        one_device_samples_per_second: measured on one device, with the batch that a device has here.
        gradient_bytes: of the whole model.
        global_batch: samples of a step. micro_batch: samples that a device passes at once.
        data, tensor, pipeline, shard: parts along each axis.
        partition: a stage's share of a sample's time each, of any sum.
        exchange: how gradients are summed. reduce_on: what sums them within a node without a library.
        servers: of parameters, between nodes; 0 is not given.
        input: whether samples are read and decoded. image_size: pixels of a side of these.
        seconds: of one step, measured.
        memory_bytes: of the device that has most, measured.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, protected_namespaces=())

    id: str | None = None
    device: Annotated[str, BeforeValidator(_lower)]
    devices: Count
    devices_per_node: Count | None = None
    network: Annotated[str | None, BeforeValidator(_lower)] = None
    framework: str | None = None
    precision: Annotated[Literal["fp32", "tf32", "fp16", "bf16"], BeforeValidator(_lower)] = "fp32"
    model: str
    layers: Count | None = None
    hidden: Count | None = None
    heads: Count | None = None
    kv_heads: Count | None = None
    ffn: Count | None = None
    sequence: Count | None = None
    vocabulary: Count | None = None
    one_device_samples_per_second: Positive | None = None
    gradient_bytes: Positive | None = None
    global_batch: Positive
    micro_batch: Positive | None = None
    data: Count | None = None
    tensor: Count = 1
    pipeline: Count = 1
    shard: Count | None = None
    virtual_stages: Count | None = None
    schedule: Annotated[str | None, BeforeValidator(_lower)] = None
    partition: Annotated[tuple[Positive, ...] | None, BeforeValidator(_numbers)] = None
    recompute: Annotated[Literal["none", "selective", "except_last", "full"], BeforeValidator(_lower)] = (
        "none"
    )
    servers: Annotated[int, Field(ge=0, le=10**9)] | None = None
    input: Annotated[Literal["real", "synthetic"], BeforeValidator(_lower)] = "synthetic"
    reduce_on: Annotated[Literal["cpu", "gpu"] | None, BeforeValidator(_lower)] = None
    sequence_parallel: Flag = False
    flash_attention: Flag = False
    exchange: Annotated[
        Literal["nccl", "ring", "parameter_server", "mpi"] | None, BeforeValidator(_lower)
    ] = None
    image_size: Count | None = None
    seconds: Positive | None = None
    memory_bytes: Positive | None = None

    @property
    def is_transformer(self) -> bool:
        """Return whether the row has the shapes of a transformer, from which its time can be computed."""
        return None not in (self.layers, self.hidden, self.sequence)

    @property
    def family(self) -> str:
        """Return the model's name; a transformer's, which all have one name, with its shape."""
        if self.model.strip().lower() != TRANSFORMER:
            return self.model.strip().lower()
        return f"{TRANSFORMER} {self.layers}x{self.hidden}"


# A column's place is a whole number in a table that a spreadsheet has written as 8.0.
_WHOLE = {name for name, field in Row.model_fields.items() if "int" in str(field.annotation)}


def parse(cells: Mapping[str, str]) -> Row:
    """Read a line of a table, by its columns' names; an empty cell is not given.

    Raises:
        ConfigError: for a value that a column can't have, or a column that is missing or empty.
    """
    given = {key: text.strip() for key, text in cells.items() if key in Row.model_fields and text.strip()}
    for key in _WHOLE & given.keys():
        given[key] = re.sub(r"^(\d+)\.0*$", r"\1", given[key])
    try:
        return Row.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        if first["type"] == "missing":
            raise ConfigError(f"{key}: is needed") from error
        expected = first.get("ctx", {}).get("expected")
        if expected is not None:
            words = re.findall(r"'([^']*)'", expected)
            raise ConfigError(
                f"{key}={given[key]}: must be one of {', '.join(words)}; did you mean "
                f"{nearest(given[key], words)}?"
            ) from error
        message = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
        raise ConfigError(f"{key}={given[key]}: should be {message}") from error
