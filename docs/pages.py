"""Writes docs/methods/: a page per method, from its docstrings and fields. `python docs/pages.py [--check]`."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from coterie.catalogue import METHODS

FIELD = r"^    (\w+): [^\n#]+  # (.*)$"  # of a dataclass, with what its comment says
HERE = Path(__file__).parent / "methods"


def kind(hint: Any) -> str:
    """A type as a user writes its values: words for literals, plain names for the rest."""
    if get_origin(hint) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(hint))
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(kind(part) for part in get_args(hint))
    return {"NoneType": "nothing", "PositiveInt": "int"}.get(
        getattr(hint, "__name__", ""), getattr(hint, "__name__", "any")
    )


def field_rows(method: type[Any]) -> list[str]:
    """A table row per hyper-parameter: name, type, default, what its comment says."""
    comments: dict[str, str] = {}
    for base in reversed(method.__mro__[:-1]):
        comments |= dict(re.findall(FIELD, inspect.getsource(base), re.MULTILINE))
    hints = get_type_hints(method)
    rows = []
    for field in dataclasses.fields(method):
        default = "required" if field.default is dataclasses.MISSING else f"`{field.default}`"
        if dataclasses.is_dataclass(field.default):
            default = f"`{type(field.default).__name__}(...)`"
        rows.append(f"| `{field.name}` | {kind(hints[field.name])} | {default} | {comments.get(field.name, '')} |")
    return rows


def page(name: str) -> str:
    """The page of one method."""
    method = METHODS.find(name)
    module = sys.modules[method.__module__]
    about = inspect.cleandoc(module.__doc__ or "")
    source = f"src/{method.__module__.replace('.', '/')}.py"
    lines = [
        f"# {name}",
        "",
        inspect.cleandoc(method.__doc__ or ""),
        "",
        f"Paper: {method.paper}. Source: [`{source}`](../../{source}).",
        "",
        "```",
        f"coterie run method.name={name}" + (" method.base.name=ifca" if name == "cam" else ""),
        "```",
        "",
        "## How it works, and where it differs from its paper",
        "",
        about,
        "",
        "## Parameters",
        "",
        "| key | type | default | |",
        "|---|---|---|---|",
        *field_rows(method),
        "",
        "## A newcomer, during training or after it",
        "",
        newcomer(method),
        "",
    ]
    return "\n".join(lines)


def newcomer(method: type[Any]) -> str:
    """What its rule for clients it has not met says of itself."""
    rule = getattr(method, "admit", None)
    text = (rule or method.predictor).__doc__ or ""
    return " ".join(text.split())


def index(names: list[str]) -> str:
    """The list of pages."""
    rows = [
        f"| [{n}]({file_name(n)}) | {(METHODS.find(n).__doc__ or '').splitlines()[0]} | {METHODS.find(n).paper} |"
        for n in names
    ]
    return "\n".join(["# Methods", "", "| name | what it is | paper |", "|---|---|---|", *rows, ""])


def file_name(name: str) -> str:
    """A file for a name with signs in it."""
    return name.replace("+", "-plus") + ".md"


def pages() -> dict[str, str]:
    """Every file and its text."""
    names = list(METHODS.places)
    return {file_name(name): page(name) for name in names} | {"README.md": index(names)}


def main() -> int:
    """Write, or with --check say which are out of date."""
    wanted = pages()
    if "--check" in sys.argv:
        stale = [f for f, text in wanted.items() if not (HERE / f).is_file() or (HERE / f).read_text() != text]
        print(f"out of date: {', '.join(stale)}; run python docs/pages.py" if stale else "docs/methods is up to date")
        return bool(stale)
    HERE.mkdir(exist_ok=True)
    for orphan in {file.name for file in HERE.glob("*.md")} - set(wanted):
        (HERE / orphan).unlink()
    for file, text in wanted.items():
        (HERE / file).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
