"""The first line and the paper of a class, read from its source: a listing need not import torch to print them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeAlias

PACKAGE = Path(__file__).parent.parent
Definition: TypeAlias = ast.ClassDef | ast.FunctionDef


@dataclass(frozen=True)
class Description:
    """What a listing shows of a class or function."""

    summary: str
    paper: str


class UnreadableError(Exception):
    """The source is missing, or computes the value only when it runs."""


def describe(module: str, name: str) -> Description:
    """The same as `__doc__` and `.paper`."""
    found = _definition(module, name)
    text = ast.get_docstring(found) or ""
    return Description(text.splitlines()[0] if text else "", _paper(module, found) or "")


def _paper(module: str, found: Definition) -> str | None:
    """The attribute `paper` of the class, or of the first of its bases that has one."""
    if not isinstance(found, ast.ClassDef):
        return None
    for statement in found.body:
        if not isinstance(statement, ast.AnnAssign) or ast.unparse(statement.target) != "paper":
            continue
        if isinstance(statement.value, ast.Constant) and isinstance(statement.value.value, str):
            return statement.value.value
        raise UnreadableError(f"{module}:{found.name}.paper")
    for place, name in _bases(module, found):
        paper = _paper(place, _definition(place, name))
        if paper is not None:
            return paper
    return None


def _bases(module: str, found: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Where this package's own bases of a class are defined, in order."""
    imported = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in _source(module).body
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("coterie.")
        for alias in node.names
    }
    own = {node.name for node in _source(module).body if isinstance(node, ast.ClassDef)}
    for base in found.bases:
        expression = base.value if isinstance(base, ast.Subscript) else base  # Method[State]
        if isinstance(expression, ast.Name) and expression.id in own:
            yield module, expression.id
        elif isinstance(expression, ast.Name) and expression.id in imported:
            yield imported[expression.id]


def _definition(module: str, name: str) -> Definition:
    for node in _source(module).body:
        if isinstance(node, Definition) and node.name == name:
            return node
    raise UnreadableError(f"{module}:{name}")


@cache
def _source(module: str) -> ast.Module:
    package, *rest = module.split(".")
    file = PACKAGE.joinpath(*rest).with_suffix(".py")
    if package != "coterie" or not file.is_file():
        raise UnreadableError(module)
    return ast.parse(file.read_text(encoding="utf-8"))
