"""Check the files of `conf/<group>/` that the user has chosen, and that they fit the strategy's framework.

They must be readable, and describe all that the program reads; what they name must be there. A mistake in a
file raises `ConfigError` with the file and the key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from src.config import datasets, import_paths
from src.config.keys import GROUPS, key_of
from src.config.mistakes import ConfigError, nearest
from src.config.model_framework import check_framework_of
from src.config.run_config import CONF, Config
from src.config.schema import check_options, flatten

# The keys that a strategy's file must have, and the type of each.
STRATEGY: dict[str, type | tuple[type, ...]] = {
    "framework": str,
    "entry": str,
    "launcher": str,
    "supports": Mapping,
    "supports.devices": list,
    "supports.workers": Mapping,
    "supports.microbatches": Mapping,
    "supports.shares_batch": bool,
    "supports.batchnorm": list,
    "supports.precision": list,
    **{f"supports.{key}.{bound}": int for key in ("workers", "microbatches") for bound in ("default", "min")},
    **{f"supports.{key}.max": (int, type(None)) for key in ("workers", "microbatches")},
}
DATASET: dict[str, type | tuple[type, ...]] = {
    "reader": (str, type(None)),
    "source": str,
    "files": Mapping,
    "sources": list,
}
OPTIONAL: dict[str, type | tuple[type, ...]] = {
    **{key: (str, type(None)) for key in ("generator", "page", "licence", "registration")},
    "unpack": (Mapping, type(None)),
    "tree": bool,
}
CHECKSUM = r"[0-9a-f]{64}|md5:[0-9a-f]{32}"
MODEL: dict[str, type | tuple[type, ...]] = {"torch": (str, type(None)), "tensorflow": (str, type(None))}
TASK: dict[str, type | tuple[type, ...]] = {**MODEL, "metrics": list}
FRAMEWORKS = ("torch", "tensorflow")
ACCURACY = "accuracy"
WORDS = {str: "a text", list: "a list", Mapping: "a mapping", bool: "true or false", int: "a whole number"}


def find(group: str, name: str, folders: Iterable[Path] = ()) -> Path:
    """Return the file of a choice: that in `conf/`, else in the first of the user's own `folders`."""
    paths = [folder / group / f"{name}.yaml" for folder in (CONF, *folders)]
    return next((path for path in paths if path.is_file()), paths[0])


def check_names(folder: Path) -> None:
    """Raise `ConfigError` for a file in the user's `folder` that Hydra wouldn't read.

    A file of conf/ has its name, and comes first. A copy of that is no mistake.
    """
    for group in ("", *GROUPS):
        for file in sorted((folder / group).glob("*.yaml")):
            ours = CONF / group / file.name
            if ours.is_file() and ours.read_bytes() != file.read_bytes():
                raise ConfigError(
                    f"--config-dir {folder}: {file} wouldn't be read, for {ours} has its name; "
                    "give yours another"
                )


def check_files(row: Sequence[str], folders: Sequence[Path]) -> None:
    """Raise `ConfigError` where a file that the overrides `row` choose can't be read as a mapping.

    `folders` are those of the user's own choices.
    """
    for word in row:
        group, _, name = word.partition("=")
        if group in GROUPS and (path := find(group, name.strip("'\""), folders)).is_file():
            read(path)


def read(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping; raise `ConfigError` for any other, or one that can't be read."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is no UTF-8 text") from error
    except yaml.YAMLError as error:
        raise ConfigError(describe_yaml_error(error, path)) from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: must be a mapping, `key: value` on each line")
    return content


def describe_yaml_error(error: yaml.YAMLError, path: Path | None = None) -> str:
    """Return what is wrong with a YAML file, in one sentence with the file and the line."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).strip().splitlines()[0]
    where = path or (mark.name if mark else "YAML")
    line = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    return f"{where}{line}: is no valid YAML: {problem}"


def check_described(raw: Mapping[str, Any], row: Sequence[str], folders: Sequence[Path]) -> None:
    """Raise `ConfigError` where a chosen file lacks a key that the program reads, or has it of another type.

    `raw` is the composition of `row`, choices of groups as `model=cnn`; `folders` have the user's own ones.
    """
    chosen = dict(word.split("=", 1) for word in row)
    files: dict[str, Path] = {}
    for group in GROUPS:
        if not isinstance(raw.get(group), Mapping):
            raise ConfigError(f"{group}={raw.get(group)}: must be a mapping, from a file of conf/{group}/")
        name = raw[group].get("name")
        files[group] = find(group, chosen.get(group, str(name)).strip("'\""), folders)
        if group != "model" or name is not None:
            _check_name(files[group], group, name)
    _check_keys(files["strategy"], raw["strategy"], STRATEGY)
    _check_keys(files["model"], raw["model"], MODEL)
    _check_strategy(files["strategy"], raw)
    if not any(raw["model"][framework] for framework in FRAMEWORKS):
        raise ConfigError(f"{files['model']}: needs the import path of a builder, as `torch` or `tensorflow`")
    check_dataset(files["dataset"], raw["dataset"])
    _check_task(files["task"], raw["task"])
    _check_hardware(files["hardware"], raw["hardware"])


def _check_name(file: Path, group: str, name: Any) -> None:
    """Raise `ConfigError` unless `name` can be a part of the name of a run and of its files."""
    plain = r"[\w.+-]*" if group != "model" else r"[\w.+:-]*"
    if not isinstance(name, str) or not re.fullmatch(rf"\w{plain}", name):
        raise ConfigError(f"{file}: `name` must be a word of letters, digits, '_', '-' and '.', got {name!r}")


def _check_keys(file: Path, content: Mapping[str, Any], kinds: Mapping[str, Any]) -> None:
    """Raise `ConfigError` unless the file's `content` has the keys of `kinds`, with values of these types."""
    for key, kind in kinds.items():
        value: Any = content
        for part in key.split("."):
            if not isinstance(value, Mapping) or part not in value:
                raise ConfigError(f"{file}: lacks `{key}`; docs/extending.md says what it is")
            value = value[part]
        # True is an int.
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            first = kind[0] if isinstance(kind, tuple) else kind
            raise ConfigError(f"{file}: `{key}` must be {WORDS[first]}, got {value!r}")


def _check_hardware(file: Path, hardware: Mapping[str, Any]) -> None:
    """Raise `ConfigError` where hardware has a key that conf/config.yaml doesn't, or one of another type."""
    known = read(CONF / "config.yaml")["hardware"]
    for key in hardware:
        if key not in known and not key_of(f"hardware.{key}").fixed:
            raise ConfigError(f"{file}: `{key}` is no key of hardware; did you mean {nearest(key, known)}?")
    try:
        check_options("hardware", hardware, known)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error


def _check_strategy(file: Path, raw: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for a strategy of another framework, or one that needs a key that there isn't."""
    strategy = raw["strategy"]
    if strategy["framework"] not in FRAMEWORKS:
        raise ConfigError(f"{file}: `framework` must be torch or tensorflow, got {strategy['framework']!r}")
    if not strategy["supports"]["devices"] or set(strategy["supports"]["devices"]) - {"cpu", "gpu"}:
        raise ConfigError(f"{file}: `supports.devices` must list cpu, gpu or both")
    # `machine` is the processor's architecture.
    keys = {"machine", *flatten(raw)}
    for need in strategy["supports"].get("needs") or ():
        if not isinstance(need, Mapping) or not {"is", "at_most", "at_least"} & need.keys():
            raise ConfigError(f"{file}: `supports.needs` has {need!r}; it lists {{key: ..., is: ...}}")
        if need.get("key") not in keys:
            raise ConfigError(f"{file}: `supports.needs` names {need.get('key')!r}, which is no key")


def _check_task(file: Path, task: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for a task that exists for no framework, or names no metric."""
    _check_keys(file, task, TASK)
    if not any(task[framework] for framework in FRAMEWORKS):
        raise ConfigError(f"{file}: needs the import path of a task, as `torch` or `tensorflow`")
    if not task["metrics"] or not all(isinstance(name, str) and name for name in task["metrics"]):
        raise ConfigError(f"{file}: `metrics` must list names, the one to be shown first")
    if not isinstance(task.get("higher_is_better", True), bool):
        raise ConfigError(f"{file}: `higher_is_better` must be true or false, of the first metric")
    models = task.get("models")
    if models is not None and not (
        isinstance(models, list) and all(isinstance(each, str) for each in models)
    ):
        raise ConfigError(f"{file}: `models` must list names of models, got {models!r}")


def check_dataset(file: Path, dataset: Mapping[str, Any]) -> None:
    """Raise `ConfigError` where a dataset lacks a key, or has files that lie elsewhere or no good checksum.

    Besides what a file must say it checks what it may leave away, as `src.config.datasets` fills that in.
    """
    _check_keys(file, dataset, DATASET)
    _check_keys(file, datasets.filled(dataset), OPTIONAL)
    if bool(dataset["reader"]) == bool(dataset.get("in_memory")):
        raise ConfigError(f"{file}: needs the import path of a `reader`, or else of a function `in_memory`")
    if dataset["source"] not in datasets.SOURCES:
        raise ConfigError(f"{file}: `source` must be original or generated, got {dataset['source']!r}")
    for name, checksum in dataset["files"].items():
        parts = Path(str(name)).parts
        if not isinstance(name, str) or not parts or name.startswith("/") or ".." in parts or "\0" in name:
            raise ConfigError(f"{file}: `files` has {name!r}; name files below the dataset's own folder")
        if checksum is not None and not re.fullmatch(CHECKSUM, str(checksum)):
            raise ConfigError(
                f"{file}: `files.{name}` must be the sha256 of its bytes (64 hexadecimal digits), md5:... "
                f"or null, got {checksum!r}"
            )
    for source in dataset["sources"]:
        if not isinstance(source, Mapping) or not all(isinstance(value, str) for value in source.values()):
            raise ConfigError(f"{file}: `sources` has {source!r}; it lists mappings, as {{url: https://...}}")
    unpack = dataset.get("unpack")
    if unpack is not None and not all(isinstance(unpack.get(key), int) for key in ("bytes", "files")):
        raise ConfigError(f"{file}: `unpack` must have the most `bytes` and `files`, got {unpack!r}")


def check_parity(strategy: Mapping[str, Any]) -> None:
    """Raise `ConfigError` where a strategy's file lacks `synchronous`, or `parity` where that is false.

    So it does where `reference` isn't for a strategy of a single device, or it or `baseline` are no options.
    """
    file = f"conf/strategy/{strategy['name']}.yaml"
    if "synchronous" not in strategy:
        raise ConfigError(f"{file}: needs `synchronous: true`, or false and a `parity` that says why")
    if strategy["synchronous"] is False and "parity" not in strategy:
        raise ConfigError(f"{file}: needs `parity`, a few words on why its losses can't equal one device's")
    for key in ("reference", "baseline"):
        if not isinstance(strategy.get(key) or {}, Mapping):
            raise ConfigError(f"{file}: {key}={strategy[key]}: must be options with values, as {{loop: fit}}")
    reference = strategy.get("reference")
    if unknown := [option for option in reference or {} if option not in strategy]:
        raise ConfigError(f"{file}: reference: the strategy has no option {unknown[0]}")
    alone = strategy["synchronous"] is True and strategy["supports"]["workers"]["max"] == 1
    if reference is not None and not alone:
        raise ConfigError(
            f"{file}: `reference` is for the plain training on one device: `synchronous: true` and one "
            "worker at most"
        )


def check_framework(config: Config) -> None:
    """Raise `ConfigError` where model or task lacks the framework, or an import path names nothing."""
    for group in ("model", "task"):
        _check_form(config, group)
    for key, path in (
        ("strategy.entry", config.strategy["entry"]),
        ("strategy.serve", config.strategy.get("serve")),
        (f"model.{config.framework}", config.model[config.framework]),
        (f"task.{config.framework}", config.task[config.framework]),
        ("dataset.reader", config.dataset["reader"]),
        ("dataset.generator", config.dataset["generator"]),
        ("dataset.in_memory", config.dataset["in_memory"]),
    ):
        if path is not None:
            import_paths.check(key, path)
    # Its module is imported before any rank is started, by a process of its own.
    if config.model.get("path") is not None:
        import_paths.check_package("model.path", config.model["path"])
        other = next(name for name in FRAMEWORKS if name != config.framework)
        check_framework_of(config, _choices_for(other, "strategy"))


def check_model_and_task(config: Config) -> None:
    """Raise `ConfigError` for a model of the project's that doesn't give what the task takes."""
    model, task = config.model["name"], config.task["name"]
    fitting = config.task.get("models") or ()
    if model in fitting or config.model.get("path") is not None or "package" in config.model:
        return
    files = [read(path) for path in sorted((CONF / "task").glob("*.yaml"))]
    if meant := [file["name"] for file in files if model in (file.get("models") or ())]:
        raise ConfigError(
            f"model={model}: is for task={' or '.join(meant)}, and dataset={config.dataset['name']} is used "
            f"with task={task}"
        )
    if fitting and import_paths.is_own(config.model[config.framework]):
        raise ConfigError(
            f"model={model}: doesn't give what task={task} takes, which dataset={config.dataset['name']} is "
            f"used with; of the models here {', '.join(fitting)} {'do' if fitting[1:] else 'does'}"
        )


def check_target(config: Config) -> None:
    """Raise `ConfigError` for a target accuracy of a task that has no accuracy."""
    if config.stop_at_target and config.target_accuracy is None:
        raise ConfigError("stop_at_target=true: there is no target_accuracy to stop at")
    if config.target_accuracy is not None and ACCURACY not in config.task["metrics"]:
        raise ConfigError(
            f"target_accuracy={config.target_accuracy}: task {config.task['name']} has no accuracy, but "
            f"{', '.join(config.task['metrics'])}; leave it away"
        )


def _check_form(config: Config, group: str) -> None:
    """Raise `ConfigError` where the choice of `group`, `model` or `task`, lacks the strategy's framework."""
    chosen = getattr(config, group)
    if not chosen.get(config.framework):
        frameworks = [name for name in FRAMEWORKS if chosen.get(name)]
        raise ConfigError(
            f"{group}={chosen['name']}: exists for {', '.join(frameworks)} and strategy "
            f"{config.strategy['name']} needs {config.framework}, for which there are "
            f"{', '.join(_choices_for(config.framework, group))}"
        )


def _choices_for(framework: str, group: str) -> list[str]:
    """Return the names of the choices of a group that exist for a framework."""
    files = {path.stem: read(path) for path in sorted((CONF / group).glob("*.yaml"))}
    return [name for name, file in files.items() if file.get(framework) or file.get("framework") == framework]


def whole_model_strategies() -> list[str]:
    """Return the names of torch's strategies that train one model, which each rank holds as a whole."""
    left_out = {"partition", "capacity", "plan"}
    return [
        name
        for name, file in strategies().items()
        if file["framework"] == "torch" and not left_out & file.keys()
    ]


def plain_strategies() -> dict[str, Mapping[str, Any]]:
    """Return the files of the strategies that are their framework's plain training, by name."""
    return {name: file for name, file in strategies().items() if file.get("reference") is not None}


def strategies() -> dict[str, Any]:
    """Return the files of all strategies of conf/, by name."""
    return {path.stem: read(path) for path in sorted((CONF / "strategy").glob("*.yaml"))}
