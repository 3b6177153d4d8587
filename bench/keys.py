"""Write docs/keys.md: each key that a run accepts, its default and what it may hold, from the files of conf/.

python -m bench.keys [--check]

The words are the comments in these files. With `--check` the page is compared with what it would be.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from src.config import CONF, data_sheets
from src.config.keys import GROUPS, find, key_of
from src.config.rule import Rule
from src.config.schema import typed

PAGE = Path(__file__).parent.parent / "docs" / "keys.md"
HEAD = """# Keys

Every key of `python -m src.train`, set by `key=value`; `python -m bench.keys` writes this page from the
files of `conf/`. `null` means not set, or decided by the strategy. What each choice of a group is for stands
in [strategies](strategies.md), [datasets](datasets/README.md), [networks](networks.md) and
[clusters](clusters.md). The keys of `python -m src.recommend` are in [the verdict](recommend.md).
"""
# Parts of conf/config.yaml that aren't keys of a run.
LEFT_OUT = ("defaults", "hydra")
TABLE = "| key | default | means | may be |\n| --- | --- | --- | --- |\n"


def page() -> str:
    """Return the page as Markdown."""
    base = _read(CONF / "config.yaml")
    choices = {group: ", ".join(f"`{path.stem}`" for path in _files(group)) for group in GROUPS}
    lines = [HEAD, "## Groups\n", "| group | choices |\n| --- | --- |"]
    lines += [f"| `{group}` | {names} |" for group, names in choices.items()]
    lines += ["", "## All runs\n", TABLE + "\n".join(_rows(base, "", base))]
    for group in GROUPS:
        for path in _files(group):
            chosen = _read(path)
            if rows := list(_rows(chosen, f"{group}.", chosen)):
                lines += ["", f"## {group}={path.stem}\n", TABLE + "\n".join(rows)]
    return "\n".join(lines) + "\n"


def _files(group: str) -> list[Path]:
    """Return the files of a group, but for data sheets, which no run can have."""
    sheets = data_sheets.names() if group == "hardware" else ()
    return [path for path in sorted((CONF / group).glob("*.yaml")) if path.stem not in sheets]


def _read(path: Path) -> CommentedMap:
    """Return a file's content, with its comments."""
    content: CommentedMap = YAML().load(path.read_text())
    return content


def _rows(content: CommentedMap, prefix: str, file: Mapping[str, Any]) -> Iterator[str]:
    """Yield the line of each key of a mapping that a user may set."""
    allowed = content.get("allowed") or {}
    for name, value in content.items():
        key = f"{prefix}{name}"
        if (not prefix and name in LEFT_OUT) or name == "allowed" or key_of(key).fixed:
            continue
        if isinstance(value, CommentedMap) and value and (key in GROUPS or find(key) is None):
            yield from _rows(value, f"{key}.", file)
            continue
        words = _cell(_comment(content, name))
        yield f"| `{key}` | `{_cell(_plain(value))}` | {words} | {_cell(_bounds(key, allowed.get(name)))} |"


def _comment(content: CommentedMap, name: str) -> str:
    """Return the comment at the end of a key's line."""
    found = content.ca.items.get(name)
    token = found[2] if found and len(found) > 2 else None
    return token.value.splitlines()[0].removeprefix("#").strip() if token else ""


def _bounds(key: str, allowed: Any) -> str:
    """Return what a key may hold, by its choice's `allowed` or by its rule."""
    if isinstance(allowed, list):
        return ", ".join(f"`{typed(value)}`" for value in allowed)
    if isinstance(allowed, Mapping):
        known = dict(allowed)
        words = [f"`{typed(value)}`" for value in known.get("choices", [])]
        low, high = known.get("min"), known.get("max")
    else:
        rule = key_of(key).rule or Rule(str)
        words = [f"`{typed(value)}`" for value in rule.choices]
        low, high = rule.minimum, rule.maximum
    if low is not None and high is not None:
        words.append(f"{_number(low)} to {_number(high)}")
    elif low is not None:
        words.append(f"from {_number(low)}")
    return ", ".join(words)


def _number(bound: float) -> str:
    return str(bound) if isinstance(bound, int) else f"{bound:g}"


def _plain(value: Any) -> str:
    """Return a value as it is typed; of a mapping with entries no more than that it is one."""
    if isinstance(value, list):
        return f"[{','.join(map(_plain, value))}]"
    return ("{...}" if value else "{}") if isinstance(value, Mapping) else typed(value)


def _cell(text: str) -> str:
    """Return a text for a cell of a table, in which `|` would end it."""
    return text.replace("|", "\\|")


def main() -> int:
    """Write the page, or compare it; return the exit status, 1 where it isn't as it would be."""
    if "--check" in sys.argv[1:]:
        return int(PAGE.read_text() != page())
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
