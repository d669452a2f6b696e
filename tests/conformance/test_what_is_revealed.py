"""SECURITY.md says what each method reveals to the server: every method is in its table, and the table is true."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import toys
from comings import linear, toy

from conftest import few
from coterie import Local
from coterie.core.model import Model
from coterie.core.registry import METHODS
from coterie.core.tasks import Best, Evaluated, Fit, Fitted, Scored
from coterie.engines.contract import Outcome, Visit
from coterie.engines.sequential import Sequential
from coterie.training.assembly import Run
from coterie.training.loop import train
from coterie.training.settings import Settings

SECURITY = Path(__file__).parents[2] / "SECURITY.md"
HEAD = "| method | a client sends |"
DAILY = ("fedavg", "ifca", "fedem", "local")  # one of each kind; `halves` and `stocfl` with their sketches take longer


def table() -> dict[str, list[str]]:
    """The rows by method."""
    lines = SECURITY.read_text("utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(HEAD)) + 2
    found: dict[str, list[str]] = {}
    for line in lines[start:]:
        if not line.startswith("| "):
            break
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        assert name not in found, f"{name} is there twice"
        found[name] = cells
    return found


def test_every_registered_method_is_in_the_table() -> None:
    assert list(table()) == list(METHODS.places)
    for name, cells in table().items():
        assert len(cells) == 4, name
        assert all(cells), f"{name}: an empty cell"


class Recording(Sequential):
    """Notes what clients send for training."""

    def __init__(self, *how: Any) -> None:
        super().__init__(*how)
        self.seen: set[str] = set()

    def visit(self, visit: Visit) -> Outcome:
        outcome = super().visit(visit)
        for task, reply in zip(visit.tasks, outcome.replies, strict=True):
            if isinstance(reply, Fitted) and isinstance(task, Fit):
                self.seen |= {"model"} if reply.sent is not None else set()
                self.seen |= {"sketch"} if reply.sketch is not None else set()
                self.seen |= {"choice"} if reply.choice is not None and isinstance(task.start, Best) else set()
            if isinstance(reply, Scored) or (visit.keep and isinstance(reply, Evaluated)):
                self.seen.add("scores")
        return outcome


LATER = "when it joins later"  # a client that takes part for the first time after clusters were found
DAILY_LATER = ("wecfl", "fedavg")


def what_is_sent(name: str, **settings: Any) -> set[str]:
    """Of a run of this method."""
    federation, model = toy(), Model(linear)
    method = toys.method(name, Local(steps=2, batch="full", lr=0.5))
    engine = Recording(model, federation)
    train(Run(method, model, federation, Settings(seed=1, evaluate_every=10, **settings), engine, None, []))
    return engine.seen


def told(name: str, later: bool) -> set[str]:
    """What the table says that clients send."""
    sends, choice, scores, _ = table()[name]
    found = {what for what, word in (("model", "its model"), ("sketch", "sketch")) if word in sends}
    found |= {"choice"} if choice == "yes" else set()
    return found | ({"scores"} if scores == "yes" or (later and scores == LATER) else set())


@pytest.mark.parametrize(
    "name", [n if n in DAILY else pytest.param(n, marks=pytest.mark.exhaustive) for n in METHODS.places]
)
def test_clients_send_what_the_table_says(name: str) -> None:
    assert what_is_sent(name, rounds=3) == told(name, later=False)


@pytest.mark.parametrize("name", few(list(METHODS.places), *DAILY_LATER))
def test_clients_that_join_later_send_what_the_table_says(name: str) -> None:
    assert what_is_sent(name, rounds=10, participation=0.3, quorum=0.0) == told(name, later=True)
