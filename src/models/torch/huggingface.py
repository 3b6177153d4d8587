"""Build a model of Hugging Face's transformers, by the name of its class or a configuration.

What follows from the data is set in its configuration, unless the user has said it; what contradicts the data
is refused. The model is the library's own, called with tokens or images alone: no labels, masks or caches.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel
from transformers.utils import logging

from src.config import ConfigError
from src.config.huggingface import file_of, is_at_hub
from src.config.mistakes import nearest
from src.machine import namespaces

TEXT, IMAGES = "input_ids", "pixel_values"
IMAGE_AXES = 3
# Fields of every configuration that a user may set besides its own.
COMMON = ("num_labels", "attn_implementation")
# What transformers raises of a configuration that makes no model.
REFUSALS = (ValueError, TypeError, KeyError, AttributeError, AssertionError, ZeroDivisionError)
PROXIES = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")


def build(
    *,
    classes: int,
    shape: tuple[int, ...],
    vocabulary: int | None,
    architecture: str | None,
    config: str | None,
    pretrained: str | None,
    options: Mapping[str, Any],
) -> nn.Module:
    """Build a model with random weights, or those of `pretrained` where they fit.

    Args:
        classes: how many classes the dataset has.
        shape: of a sample's input: images [height, width, channels], or sequences of tokens [length].
        vocabulary: how many tokens there are; `None` of images.
        architecture: a class of transformers; `None` where a configuration names it.
        config: a file, or a name at a hub, of the configuration that `options` change.
        pretrained: a folder, or a name at a hub, with weights.
        options: fields of the configuration.

    Raises:
        ConfigError: for an architecture or option that there isn't, a hub that can't be reached, a model for
            other data, and a configuration that contradicts the data.
    """
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    named = config if config is not None else pretrained
    given = None if named is None else _read(named, "config" if config is not None else "pretrained")
    kind = _class_of(architecture, given)
    _check_inputs(kind, shape)
    settings = _settings(kind, given, options, _demands(kind, classes, shape, vocabulary))
    if pretrained is None:
        model = _random(kind, settings)
    else:
        with _hub(pretrained, "pretrained") as source:
            model = _loaded(kind, settings, source, pretrained)
    if model.base_model is model:
        raise ConfigError(
            f"model.architecture={kind.__name__}: gives features and no logits; choose one with a head, as "
            "GPT2LMHeadModel or ViTForImageClassification"
        )
    return model


def _random(kind: type[PreTrainedModel], settings: PretrainedConfig) -> PreTrainedModel:
    """Return a model with weights that torch's generator draws."""
    try:
        return kind(settings)
    except REFUSALS as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"model.architecture={kind.__name__}: can't be built so: {reason}") from error


def _loaded(
    kind: type[PreTrainedModel], settings: PretrainedConfig, source: str, pretrained: str
) -> PreTrainedModel:
    """Return a model with the weights that fit; print the names of those that the seed gives, to the log."""
    try:
        loaded: Any = kind.from_pretrained(
            source,
            config=settings,
            # Theirs may be half precision, which `precision` says here.
            dtype=torch.get_default_dtype(),
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except OSError as error:
        raise ConfigError(f"model.pretrained={pretrained}: {' '.join(str(error).split())[:200]}") from error
    model, found = loaded
    seeded = {*found["missing_keys"], *(name for name, *_ in found["mismatched_keys"])}
    if not model.state_dict().keys() - seeded:
        raise ConfigError(f"model.pretrained={pretrained}: none of its tensors fits the model")
    print(f"{pretrained}: loaded; with the seed's values: {', '.join(sorted(seeded)) or 'none'}")
    return model


def _class_of(architecture: str | None, given: PretrainedConfig | None) -> type[PreTrainedModel]:
    """Return the class of a model; raise `ConfigError` for one that there isn't."""
    name = architecture or next(iter(getattr(given, "architectures", None) or ()), None)
    if name is None:
        raise ConfigError("model.config: names no architecture; give model.architecture=NAME")
    found: Any = getattr(transformers, name, None)
    is_model = isinstance(found, type) and issubclass(found, PreTrainedModel)
    if not is_model or getattr(found, "config_class", None) is None:
        known = [each for each in dir(transformers) if "For" in each or each.endswith("LMHeadModel")]
        raise ConfigError(
            f"model.architecture={name}: transformers {transformers.__version__} has no such model; did you "
            f"mean {nearest(name, known)}?"
        )
    if given is not None and not isinstance(given, found.config_class):
        raise ConfigError(
            f"model.architecture={name}: takes a {found.config_class.__name__}, and the configuration is a "
            f"{type(given).__name__}"
        )
    return found


def _check_inputs(kind: type[PreTrainedModel], shape: tuple[int, ...]) -> None:
    """Raise `ConfigError` for a model of other data than the dataset's."""
    word, takes = f"model.architecture={kind.__name__}", kind.main_input_name
    if takes not in (TEXT, IMAGES):
        raise ConfigError(f"{word}: takes {takes}, and datasets here are text or images")
    has_images = len(shape) == IMAGE_AXES
    if has_images and takes == TEXT:
        raise ConfigError(
            f"{word}: takes text, and the dataset has images; choose dataset=gcide or textfile, or a model "
            "of images, as ViTForImageClassification"
        )
    if not has_images and takes == IMAGES:
        raise ConfigError(
            f"{word}: takes images, and the dataset is text; choose dataset=mnist or folder, or a model of "
            "text, as GPT2LMHeadModel"
        )


def _demands(
    kind: type[PreTrainedModel], classes: int, shape: tuple[int, ...], vocabulary: int | None
) -> dict[str, Any]:
    """Return what the data ask of a configuration, by field."""
    if vocabulary is not None:
        return {"vocab_size": vocabulary, "max_position_embeddings": shape[0], "num_labels": classes}
    height, width, channels = shape
    size = height if height == width else [height, width]
    return {"image_size": size, "num_channels": channels, "num_labels": classes}


def _settings(
    kind: type[PreTrainedModel],
    given: PretrainedConfig | None,
    options: Mapping[str, Any],
    demands: Mapping[str, Any],
) -> PretrainedConfig:
    """Return the configuration: the given one or the class's, with the options, and fitted to the data."""
    of_class: Any = kind.config_class
    plain = of_class() if given is None else given
    if plain.is_encoder_decoder:
        raise ConfigError(
            f"model.architecture={kind.__name__}: has an encoder and a decoder, which takes tokens of its "
            "own; choose a model of one part, as GPT2LMHeadModel or BertForSequenceClassification"
        )
    fields = {*plain.to_dict(), *plain.attribute_map, *COMMON}
    for name in options:
        if name not in fields:
            raise ConfigError(
                f"model.options.{name}: {type(plain).__name__} has no such field; did you mean "
                f"{nearest(str(name), sorted(fields))}?"
            )
    said = {plain.attribute_map.get(name, name) for name in options}
    values = dict(options)
    for field, wanted in demands.items():
        own = plain.attribute_map.get(field, field)
        if field != "num_labels" and not hasattr(plain, field):
            continue
        if own in said:
            value = next(options[name] for name in options if plain.attribute_map.get(name, name) == own)
            _check(f"model.options.{own}={value}", field, value, wanted)
        elif given is not None and field != "num_labels":
            value = getattr(given, field)
            _check(f"the configuration's {own}={value}", field, value, wanted)
        elif field != "max_position_embeddings" or getattr(plain, field) < wanted:
            values[field] = wanted
    values.setdefault("use_cache", False)
    # Such a model answers by the last token that is no padding, which has the number 0 here.
    if "ForSequenceClassification" in kind.__name__ and plain.pad_token_id is None:
        values.setdefault("pad_token_id", 0)
    try:
        return type(plain).from_dict({**plain.to_dict(), "dtype": None}, **values)
    except Exception as error:
        raise ConfigError(f"model.options={dict(options)}: {' '.join(str(error).split())}") from error


def _check(word: str, field: str, value: Any, wanted: Any) -> None:
    """Raise `ConfigError` where a field of the configuration contradicts what the data ask for."""
    if field == "vocab_size" and value < wanted:
        raise ConfigError(f"{word}: the dataset has {wanted} tokens; choose {wanted} or more")
    if field == "max_position_embeddings" and value < wanted:
        raise ConfigError(
            f"{word}: the dataset's sequences have {wanted} tokens; choose dataset.options.length={value} or "
            "less, or more positions"
        )
    if field == "num_labels" and value != wanted:
        raise ConfigError(f"{word}: the dataset has {wanted} classes; leave it away")
    if field == "num_channels" and value != wanted:
        raise ConfigError(f"{word}: the dataset's images have {wanted}; +model.options.num_channels={wanted}")
    if field == "image_size" and value != wanted and value != [wanted, wanted]:
        raise ConfigError(
            f"{word}: the dataset's images have {wanted}; choose dataset.size={value}, where the dataset has "
            f"that key, or +model.options.image_size={wanted}"
        )


def _read(named: str, key: str) -> PretrainedConfig:
    """Read a configuration from a file or folder, or of a hub."""
    with _hub(named, key) as source:
        try:
            return AutoConfig.from_pretrained(source if is_at_hub(named) else str(file_of(named)))
        except (ValueError, KeyError) as error:
            reason = " ".join(str(error).split())[:200]
            told = f"is no configuration that transformers knows: {reason}"
            raise ConfigError(f"model.{key}={named}: {told}") from error


@contextlib.contextmanager
def _hub(named: str, key: str) -> Iterator[str]:
    """Give the block what it reads a model from, and raise `ConfigError` where a hub doesn't have it.

    What a hub has given once is read from its cache: so the look before a run fetches, and ranks, which may
    have no network, all read the same.
    """
    if not is_at_hub(named):
        yield str(os.path.expanduser(named))
        return
    from huggingface_hub import snapshot_download

    patterns = ["*.json"] if key == "config" else ["*.json", "*.safetensors", "*.bin"]
    try:
        try:
            folder = snapshot_download(named, allow_patterns=patterns, local_files_only=True)
        except Exception:
            if reason := _unreachable():
                raise ConfigError(
                    f"model.{key}={named}: no such file or folder here, nor has the hub's cache it, and the "
                    f"hub can't be reached: {reason}"
                ) from None
            folder = snapshot_download(named, allow_patterns=patterns)
    except ConfigError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"model.{key}={named}: the hub doesn't give it: {reason}") from error
    yield folder


def _unreachable() -> str | None:
    """Return why a hub can't be reached, `None` where it may be; the library tries for half a minute."""
    from huggingface_hub import constants

    if namespaces.inside():
        return "this run's namespace has no network; hardware.isolate=never lets it"
    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    if any(os.environ.get(name) for name in PROXIES):
        return None
    host = constants.ENDPOINT.partition("://")[2].partition("/")[0].partition(":")[0]
    try:
        socket.getaddrinfo(host, None)
    except OSError as error:
        return f"{host}: {error.strerror or error}"
    return None
