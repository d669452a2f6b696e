"""Every error has a code that programs can rely on: explicit, documented, and kept on its way between processes."""

from __future__ import annotations

import ast
import copy
import pickle
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from conftest import raises
from coterie.core.errors import ArgumentError, CoterieError, DivergedError, NoAnswerError, QuorumError, ResumeError
from coterie.core.tasks import Local
from coterie.network.wire import WireError
from coterie.testing import MethodCheckError
from coterie.tools.cli import main as cli
from coterie.training.config import read
from coterie.training.evaluation import NoClientEvaluatedError

HOME = Path(__file__).parents[2]
DOCUMENTED = re.findall(r"^\| `([^`]+)` \|", (HOME / "docs/errors.md").read_text(), re.MULTILINE)
TREES = {path: ast.parse(path.read_text()) for path in sorted((HOME / "src/coterie").rglob("*.py"))}


class Site(NamedTuple):
    """A call that builds an error."""

    where: str
    kind: str
    code: ast.expr | None


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _classes() -> dict[str, str | None]:
    """CoterieError and its subclasses with the code that each defines itself."""
    defined = [node for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    found: dict[str, str | None] = {"CoterieError": None}
    while more := [n for n in defined if n.name not in found and any(_name(base) in found for base in n.bases)]:
        for node in more:
            set_here = [s for s in node.body if isinstance(s, ast.Assign) and _name(s.targets[0]) == "code"]
            found[node.name] = ast.literal_eval(set_here[0].value) if set_here else None
    return found


CLASSES = _classes()


def _sites() -> Iterator[Site]:
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _name(node.func) in CLASSES:
                code = next((word.value for word in node.keywords if word.arg == "code"), None)
                yield Site(f"{path.relative_to(HOME)}:{node.lineno}", _name(node.func), code)


def _texts(node: ast.AST) -> set[str]:
    return {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)}


def _codes(node: ast.expr) -> set[str]:
    """The codes that an expression gives: of `a if x == "y" else b`, only a's and b's."""
    if isinstance(node, ast.IfExp):
        return _codes(node.body) | _codes(node.orelse)
    if isinstance(node, ast.Call) and _name(node.func) == "getattr":
        return _codes(node.args[2])
    return {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()


def test_every_error_has_a_code() -> None:
    sites = list(_sites())
    assert len(sites) > 400
    without = [site.where for site in sites if site.code is None and CLASSES[site.kind] is None]
    assert not without, f"no code=: {without}"


def test_the_codes_in_use_are_those_of_the_documentation() -> None:
    given = {code for site in _sites() if site.code is not None for code in _codes(site.code)}
    used = given | {code for code in CLASSES.values() if code} | {CoterieError.code}
    assert not used - set(DOCUMENTED), "not in docs/errors.md"
    somewhere = set().union(*map(_texts, TREES.values()))
    assert not set(DOCUMENTED) - somewhere, "in docs/errors.md, and raised nowhere"


def test_codes_are_short_words() -> None:
    assert len(set(DOCUMENTED)) == len(DOCUMENTED)
    for code in DOCUMENTED:
        assert re.fullmatch(r"[a-z]+(-[a-z]+){0,3}", code), code


def test_classes_have_defaults_and_calls_override_them() -> None:
    assert CoterieError("x").code == "unspecified"
    assert CoterieError("x", code="run-exists").code == "run-exists"
    assert QuorumError("x", 3).code == "quorum"
    assert QuorumError("x", code="no-answer").code == "no-answer"
    assert CoterieError("x").code == "unspecified", "an override is of one error, not of the class"


def _through_a_process(error: CoterieError) -> CoterieError:
    again: CoterieError = pickle.loads(pickle.dumps(error))  # noqa: S301
    return again


@pytest.mark.parametrize("way", [_through_a_process, copy.copy, copy.deepcopy])
@pytest.mark.parametrize(
    "error",
    [
        CoterieError("text", code="run-exists"),
        ArgumentError("text", code="argument-unknown"),
        QuorumError("text", 3, ("a",), code="no-answer"),
        DivergedError("text"),
        NoAnswerError("text"),
        ResumeError("text", code="checkpoint-damaged"),
        WireError("text", code="wire-too-large"),
        NoClientEvaluatedError(3, ()),
        MethodCheckError("check_state", "text"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_codes_survive_copies_and_processes(error: CoterieError, way: Callable[[CoterieError], CoterieError]) -> None:
    again = way(error)
    assert type(again) is type(error)
    assert (str(again), again.code, vars(again)) == (str(error), error.code, vars(error))


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["rouns=3"], "config-unknown-key"),
        (["rounds=-1"], "config-invalid-value"),
        (["method.name=ifka"], "config-unknown-name"),
        (["rounds"], "config-unreadable"),
    ],
)
def test_mistakes_in_a_configuration(words: list[str], code: str) -> None:
    with pytest.raises(CoterieError) as caught:
        read(None, words)
    assert caught.value.code == code


def test_mistakes_in_a_constructor() -> None:
    with raises("argument-unknown") as caught:
        Local(learning_rate=0.1)  # type: ignore[call-arg]
    assert caught.value.code == "argument-unknown"
    with raises("argument-invalid") as caught:
        Local(lr=-1.0)
    assert caught.value.code == "argument-invalid"


def test_the_command_line_prints_the_message_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(**_: object) -> None:
        raise CoterieError("runs/a: exists already", code="run-exists")

    monkeypatch.setattr(cli, "app", fails)
    monkeypatch.setattr(cli, "end_with_parent", lambda: None)
    monkeypatch.setattr(cli, "import_from_here_last", lambda: None)
    monkeypatch.setattr("warnings.formatwarning", warnings.formatwarning)  # which main replaces
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert capsys.readouterr() == ("", "error: runs/a: exists already\n")
