"""Runs of version 0.1 in today's words: the method of a configuration, and what a checkpoint says of itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from coterie.core.moved_options import HOMES, OPTIONS, PRESETS
from coterie.core.registry import METHODS

Tree = dict[str, Any]
CLASSES = {name: place.partition(":")[2] for name, place in METHODS.places.items()} | dict(HOMES)
NAMES = {kind: name for name, kind in CLASSES.items()}
# Of two methods that options moved to, the one that has the other's options too, or needs them not.
FIRST = ("fedgroup-rcc", "fedgroup-rac", "cam-without-global")
LOST = {
    "FedGroupRCC": {"grouping"},
    "FedGroupRAC": {"grouping"},
    "CAMAuthors": {"without_global"},
    "CAMWithoutGlobal": {"without_global", "order", "score"},
}
# What each new method was in 0.1, and the option that said so.
BEFORE: Mapping[str, tuple[str, Tree]] = {name: (name.removesuffix("-authors"), {}) for name in HOMES} | {
    "fedgroup-rcc": ("fedgroup", {"grouping": "rcc"}),
    "fedgroup-rac": ("fedgroup", {"grouping": "rac"}),
    "cam-without-global": ("cam", {"without_global": True}),
}


def todays_class(kind: str, options: Mapping[str, Any]) -> str:
    """The class that a method of 0.1 with these options is now."""
    homes = [moved.home(options[key]) for key, moved in OPTIONS.get(kind, {}).items() if key in options]
    found = sorted((home for home in homes if home is not None), key=lambda home: home not in FIRST)
    return HOMES[found[0]] if found else kind


def dropped(kind: str, now: str) -> set[str]:
    """The options that the method of 0.1 had, and today's has not."""
    return LOST.get(now, set()) if now != kind else {key for key, moved in OPTIONS.get(kind, {}).items() if moved.gone}


def todays_method(tree: Tree, name: str = "") -> Tree:
    """The method of a configuration of 0.1, which spells every option out. name: of a base that need not say it."""
    kind = CLASSES.get(str(tree.get("name", name)), "")
    now = todays_class(kind, tree)
    found = {key: value for key, value in tree.items() if key not in dropped(kind, now)}
    if "name" in tree or now != kind:
        found["name"] = NAMES.get(now, tree.get("name"))
    if isinstance(tree.get("base"), dict):
        inner = PRESETS.get(kind, "")
        found["base"] = todays_method(tree["base"], inner)
        if kind in PRESETS and now != kind:
            found["base"] = {"name": inner} | found["base"]
    return found


def todays_description(text: str) -> str:
    """A method as a checkpoint names it, `StoCFL(tau=0.5, ...)`, with its options in the order of the alphabet."""
    try:
        return ast.unparse(_Translated().visit(ast.parse(text, mode="eval")))
    except (SyntaxError, ValueError):  # of a user's own class, whose values Python cannot read
        return text


class _Translated(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.AST:
        """A method, or a part of one."""
        self.generic_visit(node)
        if isinstance(node.func, ast.Name):
            options = {k.arg: k.value.value for k in node.keywords if k.arg and isinstance(k.value, ast.Constant)}
            now = todays_class(node.func.id, options)
            gone = dropped(node.func.id, now)
            node = ast.Call(ast.Name(now), node.args, [k for k in node.keywords if k.arg not in gone])
        node.keywords.sort(key=lambda k: k.arg or "")
        return node


def todays_state(outline: Any, types: set[str]) -> Any:
    """A state as a checkpoint outlines it: StoCFL keeps single representations only as its authors' code does."""
    if isinstance(outline, list):
        return [todays_state(part, types) for part in outline]
    if not isinstance(outline, dict):
        return outline
    found = {key: todays_state(value, types) for key, value in outline.items()}
    if found.get("is") == "Stochastic" and "seen" in found.get("has", {}):
        if "Sampled" in types:
            return found | {"is": "Sampled"}
        return found | {"has": {key: value for key, value in found["has"].items() if key != "seen"}}
    return found


def method_of_0_1(tree: Tree, name: str = "") -> Tree:
    """Today's method in the words of 0.1, every option spelled out: by these, outcomes were kept."""
    kind = CLASSES.get(str(tree.get("name", name)), "")
    now = NAMES.get(kind, "")
    before, extra = BEFORE.get(now, (now, {}))
    before = "fedgrouprox" if before == "fedgroup" and tree.get("mu") else before
    usual = {key: moved.usual for key, moved in OPTIONS.get(CLASSES.get(before, ""), {}).items() if moved.gone}
    without_mu = before == "fedgroup"  # which has had no proximal term
    found = usual | {key: value for key, value in tree.items() if key != "mu" or not without_mu} | extra
    if "name" in tree and now:
        found["name"] = before
    if isinstance(tree.get("base"), dict):
        found["base"] = method_of_0_1(tree["base"], PRESETS.get(kind, ""))
    return found


def described_in_0_1(text: str, note: str) -> str:
    """Data as checkpoints describe it, by which a run knows its own. note: what the text ends with."""
    said = re.sub(r"clients? (with too few samples left out|drawn)", r"owners \1", note)
    return text.removesuffix(note).replace(": 1 client,", ": 1 clients,", 1) + said
