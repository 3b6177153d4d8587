"""Check that model and task exist for the strategy's framework, and that what a choice names is there."""

from __future__ import annotations

from src.config import choices, import_paths
from src.config.mistakes import ConfigError
from src.config.run_config import CONF, Config

ACCURACY = "accuracy"


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


def check_model_and_task(config: Config) -> None:
    """Raise `ConfigError` for a model of the project's that doesn't give what the task takes."""
    model, task = config.model["name"], config.task["name"]
    fitting = config.task.get("models") or ()
    if model in fitting or config.model.get("path") is not None:
        return
    files = [choices.read(path) for path in sorted((CONF / "task").glob("*.yaml"))]
    if meant := [file["name"] for file in files if model in (file.get("models") or ())]:
        raise ConfigError(
            f"model={model}: is for task={' or '.join(meant)}, and dataset={config.dataset['name']} is used "
            f"with task={task}"
        )
    if fitting and import_paths.is_own(config.model[config.framework]):
        raise ConfigError(
            f"model={model}: doesn't give what task={task} takes, which dataset={config.dataset['name']} is "
            f"used with; of the models here {', '.join(fitting)} does"
        )


def check_target(config: Config) -> None:
    """Raise `ConfigError` for a target accuracy of a task that has no accuracy."""
    if config.target_accuracy is not None and ACCURACY not in config.task["metrics"]:
        raise ConfigError(
            f"target_accuracy={config.target_accuracy}: task {config.task['name']} has no accuracy, but "
            f"{', '.join(config.task['metrics'])}; leave it away"
        )


def _check_form(config: Config, group: str) -> None:
    """Raise `ConfigError` where the choice of `group`, `model` or `task`, lacks the strategy's framework."""
    chosen = getattr(config, group)
    if not chosen.get(config.framework):
        frameworks = [name for name in choices.FRAMEWORKS if chosen.get(name)]
        raise ConfigError(
            f"{group}={chosen['name']}: exists for {', '.join(frameworks)} and strategy "
            f"{config.strategy['name']} needs {config.framework}, for which there are "
            f"{', '.join(_choices_for(config.framework, group))}"
        )


def _choices_for(framework: str, group: str) -> list[str]:
    """Return the names of the choices of a group that exist for a framework."""
    files = sorted((CONF / group).glob("*.yaml"))
    return [path.stem for path in files if choices.read(path).get(framework)]
