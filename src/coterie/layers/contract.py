"""What a layer is: an engine around an engine, that has a say in the visits of a run.

Attacks, dropout, screening, privacy: whatever concerns every round and no method is a layer, one file each. A layer
sees a visit on its way to the clients and their answers on the way back. It knows no other layer, and the round loop,
the record and the checkpoint know none of them: they hand on what a layer says under its key.

    class Rounded(Layer):
        key = "rounded"

        def visit(self, visit, onward):
            outcome = onward(visit)  # what lies inside: further layers, then the clients
            return replace(outcome, replies=...)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from coterie.client.contract import Memory
from coterie.core.aggregation import Aggregator
from coterie.core.errors import CoterieError
from coterie.core.model import Model
from coterie.core.tables import Clients, Roster
from coterie.core.tasks import Fit, Fitted, Reply, Task
from coterie.engines.contract import Engine, Kind, Outcome, ReplyBuilder, Visit

Onward: TypeAlias = Callable[[Visit], Outcome]
EVERY_KIND: frozenset[Kind] = frozenset(("train", "admit", "evaluate", "probe"))
TRAINING: frozenset[Kind] = frozenset(("train",))
NOBODY = torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True, eq=False)
class Setup:
    """A run before its first round, and what layers decide for it outside visits (see `Layer.prepare`)."""

    method: Any
    model: Model
    clients: Clients
    settings: Any  # `training.settings.Settings`
    given_engine: bool = False  # the user's own object, which has its data already
    # What follows is for layers to change.
    data: Clients | None = None  # what clients train on, where it is not what the run knows of them
    unscored: Tensor = field(default_factory=lambda: NOBODY)  # clients whose scores do not count, nor their losses
    cohort_key: int | None = None  # what cohorts are drawn from in place of the seed
    asks_nobody: bool = False  # the method asks although nobody was drawn: that must not show
    noisy: bool = False  # models get noise, which may be why a run diverges
    remarks: tuple[str, ...] = ()  # for the user, before the run starts


@dataclass(frozen=True, eq=False)
class Round:
    """An attempt at a round."""

    number: int  # from 0
    attempt: int  # from 0
    cohort: Tensor
    roster: Roster  # everyone who could have been drawn
    names: Sequence[str] | None  # of all clients by id
    seed: int
    model: Model
    engine: Engine  # the innermost one, which may be a network


class Layer:
    """A layer that does nothing. Yours overrides what it needs.

    One object serves one run. What it changes in `visit` counts for the attempt alone; `commit` makes it lasting.
    """

    key: ClassVar[str]  # its name in rounds.jsonl, in checkpoints and of its file
    kinds: ClassVar[frozenset[Kind]] = TRAINING  # which visits pass it
    version: ClassVar[int] = 1  # of what `pack` gives
    replaces: ClassVar[tuple[str, ...]] = ()  # keys of layers that have no place beside it
    free: ClassVar[tuple[str, ...]] = ()  # its options that may change when a run is resumed
    fixes: ClassVar[Mapping[str, str]] = {}  # settings that may not, though they usually may, and why

    @classmethod
    def of(cls, settings: Any) -> Layer | None:
        """The layer that these settings ask for, if any; a layer that is given as an object has no need of it."""
        return None

    def prepare(self, setup: Setup) -> Setup:
        """Once, before the engine is there: refuse what cannot be, and decide what lies outside visits."""
        return setup

    def admits(self) -> bool:
        """Whether clients that were added to a run are admitted before they train; an error if they cannot be."""
        return True

    def begin(self, round: Round) -> None:
        """An attempt begins."""

    def visit(self, visit: Visit, onward: Onward) -> Outcome:
        """Pass a visit on, or something else in its place, and its outcome back."""
        return onward(visit)

    def commit(self, round: Round, before: Any, after: Any) -> Mapping[str, Any]:
        """The attempt stands; the method's state before and after it. What the round's line says under the key."""
        return {}

    def abort(self, round: Round, error: CoterieError) -> None:
        """The attempt does not stand: too few answered. Everything since `begin` is to be forgotten, unless it says
        otherwise (what was released of clients was released)."""

    def may_continue(self) -> CoterieError | None:
        """Why there can be no further attempt; None if there can."""
        return None

    def finish(self, score: Callable[[Clients], Any]) -> Any:
        """After the last round; what is said of the run under the key. score: of other data, by the final models."""
        return None

    def pack(self) -> Mapping[str, Any]:
        """What was committed, as a checkpoint keeps it: numbers, text, tensors, and maps and lists of them."""
        return {}

    def unpack(self, kept: Mapping[str, Any], lost: Sequence[Path]) -> None:
        """The same of the checkpoint that the run continues from; lost: newer ones, which are damaged."""

    def document(self, clients: Clients) -> Mapping[str, Any] | None:
        """What KEY.json in the run directory says; written with every checkpoint, and at the end."""
        return None

    def suspect(self) -> Any:
        """Whose update stood out last, should the run diverge."""
        return None

    @classmethod
    def warnings(cls, settings: Any, history: Sequence[Any], clients: Clients) -> Iterator[str]:
        """What is wrong with a run that has ended; history: its rounds, with what the layer said of each."""
        yield from ()

    @classmethod
    def line(cls, said: Mapping[str, Any]) -> str | None:
        """What a table of results says below it; said: the layer's part of the last round."""
        return None


class Stack:
    """An engine with layers around it, the outermost first."""

    def __init__(self, engine: Engine, layers: Sequence[Layer] = ()) -> None:
        self.engine, self.layers = engine, tuple(layers)
        self.seconds = 0.0  # that the engine has worked

    @property
    def memory(self) -> Memory:
        """See `Engine`."""
        return self.engine.memory

    def visit(self, visit: Visit) -> Outcome:
        """A visit through all layers that are for its kind."""
        return self._onward(0, visit)

    def _onward(self, depth: int, visit: Visit) -> Outcome:
        for further, layer in enumerate(self.layers[depth:], depth + 1):
            if visit.kind in layer.kinds:
                return layer.visit(visit, partial(self._onward, further))
        if not len(visit.ids):  # an engine need not go anywhere
            return Outcome(ReplyBuilder(visit).replies(), ())
        began = time.perf_counter()
        outcome = self.engine.visit(visit)
        self.seconds += time.perf_counter() - began
        return outcome

    def close(self) -> None:
        """See `Engine.close`."""
        self.engine.close()

    def admits(self) -> bool:
        """See `Layer.admits`."""
        said = [layer.admits() for layer in self.layers]  # each may refuse
        return all(said)

    def begin(self, round: Round) -> None:
        """See `Layer.begin`."""
        for layer in self.layers:
            layer.begin(round)

    def commit(self, round: Round, before: Any, after: Any) -> dict[str, Mapping[str, Any]]:
        """What each layer says of the round, by its key; nothing of those that have nothing to say."""
        said = {layer.key: layer.commit(round, before, after) for layer in self.layers}
        return {key: found for key, found in said.items() if found}

    def abort(self, round: Round, error: CoterieError) -> None:
        """See `Layer.abort`."""
        for layer in self.layers:
            layer.abort(round, error)

    def may_continue(self) -> CoterieError | None:
        """See `Layer.may_continue`."""
        return next((why for layer in self.layers if (why := layer.may_continue()) is not None), None)

    def finish(self, score: Callable[[Clients], Any]) -> dict[str, Any]:
        """What each layer says of the run, by its key."""
        said = {layer.key: layer.finish(score) for layer in self.layers}
        return {key: found for key, found in said.items() if found is not None}

    def suspect(self) -> Any:
        """See `Layer.suspect`."""
        return next((found for layer in self.layers if (found := layer.suspect()) is not None), None)

    # -------------------------------------------------------------------------------------------- in files

    def pack(self) -> dict[str, Any]:
        """The committed state of every layer that has any."""
        found = {layer.key: (layer.version, layer.pack()) for layer in self.layers}
        return {key: {"version": version, **kept} for key, (version, kept) in found.items() if kept}

    def unpack(self, kept: Mapping[str, Any], lost: Sequence[Path] = ()) -> None:
        """And back."""
        for layer in self.layers:
            mine = dict(kept.get(layer.key) or {})
            version = mine.pop("version", layer.version)
            if version != layer.version:
                raise CoterieError(
                    f"the checkpoint has version {version} of '{layer.key}', this program knows {layer.version}",
                    code="run-version",
                )
            layer.unpack(mine, lost)

    def documents(self, clients: Clients) -> dict[str, Mapping[str, Any]]:
        """What layers write into the run directory, by the name of the file."""
        found = {f"{layer.key}.json": layer.document(clients) for layer in self.layers}
        return {name: text for name, text in found.items() if text is not None}


def averaging(
    tasks: Sequence[Task], replies: Sequence[Reply], around: Callable[[Aggregator | None], Aggregator]
) -> tuple[Reply, ...]:
    """Replies whose means are taken by an aggregator. around: it goes in the place of what they carry already."""
    return tuple(
        replace(reply, aggregator=around(reply.aggregator), start=task.start)
        if isinstance(task, Fit) and isinstance(reply, Fitted)
        else reply
        for task, reply in zip(tasks, replies, strict=True)
    )


def by_name(value: Any) -> Any:
    """An option that is a name is short for one with the name alone: `aggregator: median`."""
    return {"name": value} if isinstance(value, str) else value


def prepared(layers: Sequence[Layer], setup: Setup) -> Setup:
    """A run as its layers have it, the outermost first."""
    for layer in layers:
        setup = layer.prepare(setup)
    return setup
