"""The canary: what we use of Flower beyond its public interface is in the installed release."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

from coterie.core.errors import CoterieError
from coterie.network.flower import internals

pytest.importorskip("flwr")
SOURCES = Path(internals.__file__).parents[2]


def test_the_installed_release_has_everything() -> None:
    assert internals.missing() == []


def test_a_grid_has_the_private_parts() -> None:
    grid = internals.HttpGrid("127.0.0.1:1", True, None, token="none")  # nothing is sent before it is asked for
    assert internals.runtime_client(grid)._client.timeout is not None
    internals.limit_calls(grid, None, 7)
    assert internals.runtime_client(grid)._client.timeout.read == 7
    assert "_retry_invoker" in vars(internals.HttpGrid("127.0.0.1:1", True, None, token="none"))
    grid.close()


def test_a_name_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(internals.HOMES, "flwr.supercore.fab", ("Fab", "Fib"))
    assert internals.missing() == ["flwr.supercore.fab.Fib"]
    with pytest.raises(
        CoterieError, match=r"flwr \S+ has no flwr\.supercore\.fab\.Fib.*pip install 'coterie\[flower\]'"
    ):
        internals.find("flwr.supercore.fab", "Fib")
    with pytest.raises(CoterieError, match=r"has no flwr\.nowhere\.Fab"):
        internals.find("flwr.nowhere", "Fab")


def test_nothing_is_replaced_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    node = importlib.import_module("flwr.supernode.start_client_internal")
    monkeypatch.delattr(node, "time")
    with pytest.raises(CoterieError, match="time"):
        internals.replace("flwr.supernode.start_client_internal", "time", None)
    assert not hasattr(node, "time")


def test_a_superlink_asks_for_middleware(monkeypatch: pytest.MonkeyPatch) -> None:
    extensions = importlib.import_module("flwr.superlink.extensions")
    monkeypatch.setitem(sys.modules, extensions._SGXT_MODULE, None)  # put back afterwards
    internals.extend_superlink(lambda: ("guard",))
    assert extensions.get_middleware() == ("guard",)
    assert extensions.get_lifespan_contexts() == ()
    extensions.configure_app(None)


def test_no_other_file_reaches_into_flower() -> None:
    public = re.compile(r"^\s*(from|import) flwr\.(?!(app|clientapp|serverapp)\b)", re.MULTILINE)
    private = re.compile(r"\._(runtime_client|retry_invoker)\b")
    for path in SOURCES.rglob("*.py"):
        if path.name != "internals.py":
            text = path.read_text("utf-8")
            assert not public.search(text), f"{path}: imports a private module of Flower"
            assert not private.search(text), f"{path}: uses a private part of Flower"


@pytest.mark.parametrize(
    ("release", "fits"),
    [("1.40.2", False), ("1.41.0", True), ("1.42.7", True), ("1.43.0", False), ("2.41.0", False), ("1.42rc1", False)],
)
def test_a_release_that_was_never_tried_is_refused(release: str, fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internals, "version", lambda _: release)
    if fits:
        internals.require_flower("coterie server")
        return
    with pytest.raises(CoterieError, match=f"works with Flower 1.41 to 1.42, and flwr {release} is installed"):
        internals.require_flower("coterie server")


def test_the_range_is_the_one_that_the_extra_asks_for() -> None:
    text = (SOURCES.parents[1] / "pyproject.toml").read_text("utf-8")
    (first, last) = internals.RELEASES
    assert f"flwr>={first[0]}.{first[1]},<{last[0]}.{last[1] + 1}" in text
