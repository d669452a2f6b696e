"""Writes docs/methods/ (a page per method) and docs/data/ (all data sets, all partitions) from docstrings and fields.

`python docs/pages.py [--check]`
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from coterie.core.registry import DATASETS, METHODS, NO_CODE, PARTITIONS, Catalogue

FIELD = r"^    (\w+): [^\n#]+  # (.*)$"  # of a dataclass, with what its comment says
HERE = Path(__file__).parent
# What a method needs besides its name to run.
EXAMPLES = {
    "given": " data.name=csv data.path=visits.csv data.y=outcome data.client=hospital data.group=region",
    "fedper": " model.name=mlp",  # the demo's model is a single layer: a head without a body
    "fedrep": " model.name=mlp",
    "personal": " method.base.name=ifca model.name=mlp",
    "ifca-personal": " model.name=mlp",
}


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
    method = METHODS.find(name, NO_CODE)
    module = sys.modules[method.__module__]
    spec = inspect.cleandoc(module.__doc__ or "")
    source = f"src/{method.__module__.replace('.', '/')}.py"
    lines = [
        f"# {name}",
        "",
        inspect.cleandoc(method.__doc__ or ""),
        "",
        f"Paper: {method.paper}. Source: [`{source}`](../../{source}).",
        "",
        "```sh",
        f"coterie run method.name={name}" + EXAMPLES.get(name, " method.base.name=ifca" if needs_base(method) else ""),
        "```",
        "",
        "## How it works, and where it differs from its paper",
        "",
        spec,
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


def needs_base(method: type[Any]) -> bool:
    """Whether it wraps a method that must be named."""
    return any(field.name == "base" and field.default is dataclasses.MISSING for field in dataclasses.fields(method))


def newcomer(method: type[Any]) -> str:
    """What its rule for clients it has not met says of itself."""
    rule = getattr(method, "admit", None)
    text = (rule or method.predictor).__doc__ or ""
    return " ".join(text.split())


def index(names: list[str]) -> str:
    """The list of pages."""
    rows = [
        f"| [{n}]({file_name(n)}) | {(kind.__doc__ or '').splitlines()[0]} | {kind.paper} |"
        for n in names
        for kind in [METHODS.find(n, NO_CODE)]
    ]
    return "\n".join(["# Methods", "", "| name | what it is | paper |", "|---|---|---|", *rows, ""])


def file_name(name: str) -> str:
    """A file for a name with signs in it."""
    return name.replace("+", "-plus") + ".md"


def catalogue_page(catalogue: Catalogue, title: str, word: str) -> str:
    """Everything of one kind on one page: what it is, its paper, its parameters."""
    lines = [f"# {title}", ""]
    for name in catalogue.places:
        found = catalogue.find(name, NO_CODE)
        lines += [f"## {name}", "", inspect.cleandoc(found.__doc__ or ""), ""]
        if getattr(found, "paper", ""):
            lines += [f"Paper: {found.paper}.", ""]
        if hasattr(found, "spec"):
            spec = found.spec
            sources = "; ".join(source.title for source in spec.sources) or "by hand"
            what = f"{spec.samples:,} samples, {spec.shape}, {spec.classes} classes"
            lines += [f"{what}. Licence: {spec.licence}.", ""]
            lines += [f"Sources, tried in order: {sources}. [Homepage]({spec.homepage})", ""]
        if dataclasses.fields(found):
            lines += [f"| `{word}.` | type | default | |", "|---|---|---|---|", *field_rows(found), ""]
    return "\n".join(lines)


def pages() -> dict[str, str]:
    """Every file, relative to docs/, and its text."""
    names = list(METHODS.places)
    made = {f"methods/{file_name(name)}": page(name) for name in names}
    return made | {
        "methods/README.md": index(names),
        "data/sets.md": catalogue_page(DATASETS, "Data sets", "data"),
        "data/partitions.md": catalogue_page(PARTITIONS, "Partitions", "data.partition"),
    }


def main() -> int:
    """Write, or with --check say which are out of date."""
    wanted = pages()
    if "--check" in sys.argv:
        stale = [f for f, text in wanted.items() if not (HERE / f).is_file() or (HERE / f).read_text() != text]
        fault = f"out of date: {', '.join(stale)}; run python docs/pages.py"
        print(fault if stale else "docs/methods and docs/data are up to date")
        return bool(stale)
    for folder in ("methods", "data"):
        (HERE / folder).mkdir(exist_ok=True)
        for orphan in {f"{folder}/{file.name}" for file in (HERE / folder).glob("*.md")} - set(wanted):
            (HERE / orphan).unlink()
    for file, text in wanted.items():
        (HERE / file).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
