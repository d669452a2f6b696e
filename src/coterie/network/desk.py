"""A client's side: errands are carried out on its own data, and nothing but answers goes back.

Only networks of the catalogue are built, or one that the client itself was told to trust: a name that comes over the
wire is never imported.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from coterie.catalogue import MODELS
from coterie.client import Workbench
from coterie.data.federation import ClientData, Federation
from coterie.errors import CoterieError
from coterie.model import Model
from coterie.network.errand import NAMES, PROTOCOL, About, Errand, Hello, Plan, Refusal, Report, read_as_client
from coterie.network.members import Shape
from coterie.network.shelf import Shelf, next_version, tidy
from coterie.network.wire import LIMITS, Limits, Parcel, pack_up
from coterie.setup import loss_of, named_model
from coterie.threads import one_thread


def _together(names: tuple[str, ...] | None) -> str:
    """Names as one text that says whether two clients mean the same; too long, its fingerprint."""
    text = ", ".join("".join(c if c.isprintable() else "?" for c in name) for name in names or ())
    return text if len(text) <= NAMES else f"{len(names or ())} names, {hashlib.sha256(text.encode()).hexdigest()}"


@dataclass
class Desk:
    """Answers what a server sends. `load` gives the client's data, a federation of one, when it is first needed."""

    name: str
    load: Callable[[], Federation]
    shelf: Shelf
    trusted: tuple[str, ...] = ()  # networks of the client's own, as module:Net
    limits: Limits = LIMITS
    say: Callable[[str], None] = lambda _: None
    _benches: dict[Plan, Workbench] = field(default_factory=dict)

    @cached_property
    def federation(self) -> Federation:
        """The data, checked."""
        found = self.load().check()
        if len(found) != 1:
            raise CoterieError(f"data: a client has the data of one client, this is of {len(found)}")
        return found

    def answer(self, parcel: Parcel) -> Parcel:
        """What goes back; whatever goes wrong is a refusal with the reason."""
        try:
            asked = read_as_client(parcel, self.limits)
            reply = self.about() if isinstance(asked, Hello) else self._carry_out(asked)
        except Exception as error:
            refusal = Refusal.of(error)
            self.say(f"refused: {refusal.reason}")
            return pack_up(refusal)
        return pack_up(reply, parcel.compressed)

    def about(self) -> About:
        """Who this client is."""
        from coterie import __version__

        data = self.federation
        return About(
            protocol=PROTOCOL,
            name=self.name,
            train=len(data.train.numbers),
            test=len(data.test.numbers),
            input_shape=data.input_shape,
            kind=data.kind,
            outputs=data.outputs,
            version=__version__,
            features=_together(data.features),
            classes=_together(data.class_names),
        )

    def _carry_out(self, errand: Errand) -> Report:
        tidy(self.shelf, errand.run, errand.base, errand.since)
        kept, afresh = self._kept(errand)
        with one_thread(), torch.random.fork_rng(devices=[]):
            bench = self._bench(errand.network)
            done = bench.visit(errand.tasks, errand.client, self._data, kept, errand.moment)
        wrote = None
        if errand.keep and done.keeps:
            wrote = next_version(errand.moment.round, errand.base)
            self.shelf.write(errand.run, wrote, {**kept, **done.keeps})
        round_, task = errand.moment.round, errand.moment.task
        self.say(f"round {round_ + 1}: {', '.join(type(t).__name__.lower() for t in errand.tasks if t is not None)}")
        return Report(PROTOCOL, errand.run, errand.client, round_, task, done.answers, wrote, afresh)

    @cached_property
    def _data(self) -> ClientData:
        return self.federation.client(0)

    def _kept(self, errand: Errand) -> tuple[Mapping[str, Tensor], bool]:
        """What the server last heard that this client keeps; nothing, said so, where that is lost."""
        if errand.base is None:
            return {}, False
        kept = self.shelf.read(errand.run, errand.base)
        return ({}, True) if kept is None else (kept, False)

    def _bench(self, asked: Plan) -> Workbench:
        if asked not in self._benches:
            self._benches = {asked: Workbench(self._model(asked))}
        return self._benches[asked]

    def _model(self, asked: Plan) -> Model:
        if asked.name not in MODELS.places and asked.name not in self.trusted:
            raise CoterieError(
                f"the server's network '{asked.name}' is not in the catalogue and this client was not told to trust it "
                f"(--trust {asked.name})"
            )
        data = self.federation
        if tuple(asked.input_shape) != data.input_shape or asked.outputs < data.outputs:
            raise CoterieError(
                f"the server's network is for inputs {tuple(asked.input_shape)} and {asked.outputs} outputs, "
                f"this client's data has inputs {data.input_shape} and {data.outputs}"
            )
        if asked.loss != loss_of(data):
            raise CoterieError(f"the server trains with {asked.loss}, this client's data is a {data.kind}")
        params = json.loads(asked.params)
        if not isinstance(params, dict):
            raise CoterieError("the server's network has parameters that are no keys and values")
        model = named_model(asked.name, params, Shape(tuple(asked.input_shape), data.kind, asked.outputs))
        if model.size != asked.size:
            raise CoterieError(
                f"the server's network has {asked.size} numbers, built here it has {model.size}: "
                "install the same versions on both sides"
            )
        return model
