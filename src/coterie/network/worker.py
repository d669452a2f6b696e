"""The client's side: carries out requests on its own data and sends back answers only.

Only networks of the catalogue are built, or those that the client was told to trust: a name that comes over the network
is never imported.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from coterie.client.visit import TaskRunner
from coterie.core.compute import HOST, Compute, determinism, one_thread
from coterie.core.decoder import parse_json
from coterie.core.errors import CoterieError
from coterie.core.model import Model
from coterie.core.registry import Consent
from coterie.core.seeds import own_random_numbers
from coterie.core.tasks import Describe, Evaluate
from coterie.data.federation import ClientData, Federation
from coterie.network.client_model import save_model
from coterie.network.client_state import StateStore, next_version, remove_unused_versions
from coterie.network.local_privacy import LocalBudgetSpentError, PrivacyGuard
from coterie.network.messages import (
    NAMES,
    PROTOCOL,
    ClientInfo,
    FrozenWanted,
    Hello,
    ModelSpec,
    Refusal,
    VisitReply,
    VisitRequest,
    read_as_client,
)
from coterie.network.registry import Shape
from coterie.network.wire import LIMITS, Payload, PayloadLimits, encode
from coterie.training.ask import EVALUATION
from coterie.training.build import named_model


def _together(names: tuple[str, ...] | None) -> str:
    """Names as one text that says whether two clients mean the same; too long, its fingerprint."""
    text = ", ".join("".join(c if c.isprintable() else "?" for c in name) for name in names or ())
    return text if len(text) <= NAMES else f"{len(names or ())} names, {hashlib.sha256(text.encode()).hexdigest()}"


@dataclass
class ClientWorker:
    """Answers the server's messages. `load` returns the client's data, a federation of one, when it is first needed."""

    name: str
    load: Callable[[], Federation]
    store: StateStore
    trusted: tuple[str, ...] = ()  # networks of the client's own, as module:Net
    limits: PayloadLimits = LIMITS
    say: Callable[[str], None] = lambda _: None
    save_to: Path | None = None  # where its model is stored after every evaluation
    allowed: tuple[str, ...] = ()  # what the server may ask beside models and scores: describe
    guard: PrivacyGuard | None = None  # makes everything private that leaves the client, if it was told to
    compute: Compute = HOST  # on this client's own device
    refused: str | None = None  # why the server does not let it take part, once it has said so
    spent: str | None = None  # that its privacy budget is spent, once it was asked for more
    _runners: dict[ModelSpec, TaskRunner] = field(default_factory=dict)

    @cached_property
    def federation(self) -> Federation:
        """The data, checked."""
        found = self.load().check()
        if len(found) != 1:
            raise CoterieError(
                f"data: a client has the data of one client, this is of {len(found)}", code="data-owners"
            )
        for remark in found.remarks:
            self.say(remark)
        return found

    def answer(self, payload: Payload) -> Payload:
        """The reply to a message; any error becomes a refusal with the reason."""
        try:
            asked = read_as_client(payload, self.limits)
            if isinstance(asked, Refusal):
                self.refused = asked.reason
                return encode(asked)  # heard
            reply = self.info() if isinstance(asked, Hello) else self._prepared(asked) or self._carry_out(asked)
        except LocalBudgetSpentError as error:
            self.spent = str(error)
            return encode(Refusal.of(error))
        except Exception as error:
            refusal = Refusal.of(error)
            self.say(f"refused: {refusal.reason}")
            return encode(refusal)
        return encode(reply, payload.compressed)

    def info(self) -> ClientInfo:
        """The name of this client and the shape of its data."""
        from coterie.core.version import __version__

        data = self.federation
        return ClientInfo(
            protocol=PROTOCOL,
            name=self.name,
            train=len(data.train.numbers) if self.guard is None else self.guard.settings.samples,
            test=len(data.test.numbers) if self.guard is None else 0,
            input_shape=data.input_shape,
            kind=data.kind,
            outputs=data.outputs,
            version=__version__,
            features=_together(data.features),
            classes=_together(data.class_names),
            # With local privacy it refuses evaluations, but it may store the model that it is sent for one.
            evaluations=self.guard is None or self.save_to is not None,
        )

    def describe(self) -> str:
        """One line for its user: what there is, and what the server is told instead, if that is something else."""
        info, data = self.info(), self.federation
        own = len(data.train.numbers), len(data.test.numbers)
        line = f"{info.name}: {own[0]} training and {own[1]} test samples of shape {info.input_shape}"
        told = (info.train, info.test)
        return line if told == own else f"{line}; the server is told {told[0]} and {told[1]} (local privacy)"

    def _prepared(self, request: VisitRequest) -> FrozenWanted | None:
        """Build the network, with what is frozen of it; where that is neither here nor in the request, ask for it."""
        spec, sent = request.network, request.frozen
        if spec in self._runners:
            return None
        model = self._model(spec)
        if model.frozen != spec.frozen:
            values = self.store.frozen(spec.frozen) if sent is None else sent
            if values is None:
                return FrozenWanted(PROTOCOL, request.run, request.client, spec.frozen)
            model = model.with_frozen(values)
            if model.frozen != spec.frozen:
                raise CoterieError("the frozen part that was sent is not that of the network", code="model-frozen")
            if sent is not None:
                self.store.keep_frozen(spec.frozen, sent)
        self._runners = {spec: TaskRunner(model, compute=self.compute)}
        return None

    def _check_allowed(self, request: VisitRequest) -> None:
        kinds = [task.kind for task in request.tasks if isinstance(task, Describe)]
        if kinds and "describe" not in self.allowed:
            raise CoterieError(
                f"the server asks for a description of this client's data ({', '.join(kinds)}), which this client was "
                "not told to give (--allow describe)",
                code="describe-refused",
            )

    def _carry_out(self, request: VisitRequest) -> VisitReply:
        self._check_allowed(request)
        remove_unused_versions(self.store, request.run, request.base, request.since)
        kept, afresh = self._kept(request)
        device = torch.device(self.compute.device)
        with one_thread(), own_random_numbers(device), determinism(self.compute.deterministic):
            runner = self._runners[request.network]
            data = runner.placement.client(self.federation, 0)
            if self.guard is None:
                done = runner.visit(request.tasks, request.client, data, kept, request.moment)
                self._save_model(runner, request, kept)
            else:
                self._save_model(runner, request, kept)  # which stays here; an evaluation is then refused
                done = self.guard.visit(
                    request.tasks,
                    runner.resolver(request.client, data, kept),
                    lambda tasks: runner.visit(tasks, request.client, data, kept, request.moment),
                )
        wrote = None
        if request.keep and done.keeps:
            wrote = next_version(request.moment.round, request.base)
            self.store.write(request.run, wrote, {**kept, **done.keeps})
        round_, task = request.moment.round, request.moment.task
        self.say(f"round {round_ + 1}: {', '.join(type(t).__name__.lower() for t in request.tasks if t is not None)}")
        return VisitReply(PROTOCOL, request.run, request.client, round_, task, done.answers, wrote, afresh)

    def _save_model(self, runner: TaskRunner, request: VisitRequest, kept: Mapping[str, Tensor]) -> None:
        """Store the model that it was just evaluated with; if that cannot be, the federation does not wait for it."""
        asked = [task for task in request.tasks if isinstance(task, Evaluate)]
        if self.save_to is None or request.keep or request.moment.task < EVALUATION or not asked:
            return
        try:
            network = runner.network(asked[-1], request.client, self._data, kept)
            round_ = request.moment.round + 1
            save_model(self.save_to, self.name, round_, network, request.network, self.federation)
        except CoterieError as error:
            self.say(f"the model could not be stored: {error}")

    @cached_property
    def _data(self) -> ClientData:
        return self.federation.client(0)

    def _kept(self, request: VisitRequest) -> tuple[Mapping[str, Tensor], bool]:
        """The state that the server last heard of, and whether it is lost."""
        if request.base is None:
            return {}, False
        kept = self.store.read(request.run, request.base)
        return ({}, True) if kept is None else (kept, False)

    def _model(self, asked: ModelSpec) -> Model:
        data = self.federation
        if tuple(asked.input_shape) != data.input_shape or asked.outputs < data.outputs:
            raise CoterieError(
                f"the server's network is for inputs {tuple(asked.input_shape)} and {asked.outputs} outputs, "
                f"this client's data has inputs {data.input_shape} and {data.outputs}",
                code="model-shape",
            )
        params = parse_json(asked.params)
        if not isinstance(params, dict):
            raise CoterieError("the parameters of the server's network must be a JSON object", code="wire-unexpected")
        consent = Consent(frozenset(self.trusted), source="the server")
        model = named_model(asked.name, params, Shape(tuple(asked.input_shape), data.kind, asked.outputs), consent)
        if asked.loss != model.loss_name:
            raise CoterieError(
                f"the server trains with {asked.loss}, this client's data is a {data.kind}", code="data-labels"
            )
        if model.size != asked.size:
            raise CoterieError(
                f"the server's network has {asked.size} numbers, built here it has {model.size}: "
                "install the same versions on both sides",
                code="model-size",
            )
        if bool(model.frozen) != bool(asked.frozen):
            raise CoterieError(
                "of the server's network a part is frozen that is not here, or the other way about: install the same "
                "versions on both sides",
                code="model-frozen",
            )
        return model
