"""The network as an engine: an errand to every client of a visit, and the reports that come back in time.

Nothing but tasks and answers crosses the wire. A client that is away, late, or answers with something that cannot be
is missing, with the reason; a round goes on without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from coterie.client import FitAnswer, ScoreAnswer
from coterie.engines.contract import Gathering, Missing, Outcome, Visit
from coterie.errors import CoterieError
from coterie.memory import Memory
from coterie.network.asked import check_answers, for_client
from coterie.network.errand import PROTOCOL, About, Errand, Hello, Plan, Refusal, Report, read_as_server
from coterie.network.members import Members
from coterie.network.post import Letter, Lost, Post
from coterie.network.settings import Network
from coterie.network.wire import Limits, Parcel, WireError, pack_up
from coterie.tasks import Task

POLL = (0.2, 1.0)  # seconds between two looks into the letter box: at first, and at most
ROLL_CALL = 5.0  # seconds between two looks at who is connected, while waiting for answers
AT_THE_DOOR = 120.0  # seconds a newcomer has at least to say who it is
AT_ONCE = 16  # errands handed over together
VERSION = "version"  # the server's memory of a client: which version of what it keeps was last heard of


@dataclass
class Traffic:
    """What really went over the wire."""

    messages: int = 0
    down: int = 0  # bytes
    up: int = 0


@dataclass
class _Door:
    """Nodes that are not clients yet."""

    asked: dict[str, int] = field(default_factory=dict)  # who they are, by ticket
    first: dict[int, About] = field(default_factory=dict)  # who wait until there are enough to begin
    refused: set[int] = field(default_factory=set)


@dataclass(frozen=True, eq=False)
class _Asked:
    """A client whose report is waited for, and what it was given."""

    client: int
    tasks: tuple[Task | None, ...]


class Federated:
    """Visits clients over a network."""

    def __init__(
        self,
        post: Post,
        members: Members,
        network: Network,
        *,
        keys: Callable[[], dict[str, str]] | None = None,
        keep_rounds: int = 1,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """keys: the names of the clients by their public keys; None where keys are not asked for.

        keep_rounds: how far back the server may start over; clients keep what they kept since then.
        """
        self.memory = Memory()
        self.traffic = Traffic()
        self.network: Plan | None = None  # that clients train; set before the first visit
        self.members, self._post, self._settings, self._keys = members, post, network, keys
        self._keep_rounds, self._say = keep_rounds, say
        self._limits = Limits(largest=network.largest)
        self._door = _Door()

    # ------------------------------------------------------------------------------------------ who is there

    def wait(self) -> None:
        """Before a round: until enough clients are there; those who have come meanwhile are taken in."""
        began, told = time.monotonic(), -1
        while True:
            self._greet()
            many = len(self.members.here) or len(self._door.first)
            if many >= self._settings.clients and self.members.shape is not None:
                return
            if many != told:
                told = many
                self._say(f"waiting for clients: {many} of {self._settings.clients} connected")
            if self._settings.patience and time.monotonic() - began > self._settings.patience:
                raise CoterieError(
                    f"network.patience: after {self._settings.patience} s only {many} of "
                    f"{self._settings.clients} clients are there"
                )
            time.sleep(POLL[1] / 2)

    def _greet(self) -> None:
        """Ask nodes that are new who they are, and take in those that have answered; nobody is waited for."""
        present = self._post.present()
        self.members.only(set(present))
        door = self._door
        known = {*self.members.here.values(), *door.asked.values(), *door.first, *door.refused}
        fresh = [node for node in present if node not in known and self._admitted(node, present[node])]
        hello = pack_up(Hello(PROTOCOL, self.members.run))
        tickets = self._send([Letter(node, hello) for node in fresh], max(self._settings.deadline, AT_THE_DOOR))
        door.asked |= {ticket: node for ticket, node in zip(tickets, fresh, strict=True) if ticket is not None}
        abouts: dict[int, About] = {}
        for ticket, what in self._post.collect(list(door.asked)) if door.asked else ():
            node = door.asked.pop(ticket)
            if isinstance(what, Lost):
                continue  # it will be asked again
            try:
                about = self._opened(what)
                if not isinstance(about, About):
                    raise WireError("it did not say who it is")
                abouts[node] = self._named(about, present.get(node, ""))
            except WireError as error:
                self._refuse(node, str(error))
        door.asked = {ticket: node for ticket, node in door.asked.items() if node in present}
        door.first = {node: about for node, about in (door.first | abouts).items() if node in present}
        door.refused &= set(present)
        self._take_in()

    def _take_in(self) -> None:
        abouts = self._door.first
        # Before training everyone waits at the door, until enough are there whose data is of one kind.
        if self.members.shape is None and not self.members.settle(
            abouts, self._settings.clients, self._settings.outputs
        ):
            return
        self._door.first, before = {}, dict(self.members.here)
        for node, why in self.members.welcome(abouts).items():
            self._refuse(node, f"{abouts[node].name}: {why}")
        for client, node in self.members.here.items():
            if before.get(client) != node:
                self._say(f"client {client} ({self.members.names[client]}) is there")

    def _admitted(self, node: int, key: str) -> bool:
        if self._keys is None or key.strip() in self._keys():
            return True
        self._refuse(node, "its key is not among those of the clients")
        return False

    def _named(self, about: About, key: str) -> About:
        """With keys, a client is who its key says, whatever it calls itself."""
        if self._keys is None:
            return about
        name = self._keys()[key.strip()]
        return replace(about, name=name)

    def _refuse(self, node: int, why: str) -> None:
        if node not in self._door.refused:
            self._say(f"refused: node {node}: {why}")
        self._door.refused.add(node)

    # ------------------------------------------------------------------------------------------------ visits

    def visit(self, visit: Visit) -> Outcome:
        """See `Engine.visit`."""
        answers = Gathering(visit)
        missing: dict[int, Missing] = {}
        waiting = self._send_errands(visit, missing)
        asked, until = len(waiting), time.monotonic() + self._settings.deadline
        needed = max(1, round(self._settings.enough * asked))
        answered, pause, roll_call = 0, POLL[0], time.monotonic() + ROLL_CALL
        while waiting and answered < needed and time.monotonic() < until:
            arrived = self._post.collect(list(waiting))
            for ticket, what in arrived:
                who = waiting.pop(ticket)
                try:
                    self._accept(visit, who, what, answers)
                    answered += 1
                except WireError as error:
                    missing[who.client] = Missing(who.client, str(error))
                    self._say(f"client {who.client} ({self.members.names[who.client]}): {error}")
            if time.monotonic() > roll_call:
                roll_call = time.monotonic() + ROLL_CALL
                self._miss_the_gone(waiting, missing)
            pause = POLL[0] if arrived else min(pause * 1.5, POLL[1])
            if waiting and answered < needed:
                time.sleep(pause)
        late = "not needed any more" if answered >= needed else f"no answer within {self._settings.deadline:g} s"
        for who in waiting.values():
            missing[who.client] = Missing(who.client, late)
        return Outcome(answers.replies(), tuple(missing[c] for c in sorted(missing)))

    def close(self) -> None:
        """The post is not ours to close."""

    def _send_errands(self, visit: Visit, missing: dict[int, Missing]) -> dict[str, _Asked]:
        """An errand to every client that is there; returns who is waited for, by ticket."""
        waiting: dict[str, _Asked] = {}
        there = [client for client in visit.ids.tolist() if client in self.members.here]
        for client in set(visit.ids.tolist()) - set(there):
            missing[client] = Missing(client, "not connected")
        for first in range(0, len(there), AT_ONCE):
            some = [_Asked(client, for_client(visit, client)) for client in there[first : first + AT_ONCE]]
            letters = [
                Letter(self.members.here[who.client], pack_up(self._errand(visit, who), self._settings.compress))
                for who in some
            ]
            for who, ticket in zip(some, self._send(letters, self._settings.deadline), strict=True):
                if ticket is None:
                    missing[who.client] = Missing(who.client, "could not be sent its errand")
                else:
                    waiting[ticket] = who
        return waiting

    def _errand(self, visit: Visit, who: _Asked) -> Errand:
        version = self.memory.read(who.client).get(VERSION)
        return Errand(
            protocol=PROTOCOL,
            run=self.members.run,
            client=who.client,
            tasks=who.tasks,
            moment=visit.moment,
            keep=visit.keep,
            base=None if version is None else int(version),
            since=max(visit.moment.round - self._keep_rounds, 0),
            network=self._plan,
        )

    @property
    def _plan(self) -> Plan:
        if self.network is None:
            raise CoterieError("which network? It must be set before clients are visited")
        return self.network

    def _accept(self, visit: Visit, who: _Asked, what: Parcel | Lost, answers: Gathering) -> None:
        """An answer, if it can be one; a `WireError` says why not."""
        report, client = self._opened(what), who.client
        if not isinstance(report, Report):
            raise WireError("answered with something else than a report")
        meant = (self.members.run, client, visit.moment.round, visit.moment.task)
        if (report.run, report.client, report.round, report.task) != meant:
            raise WireError("answered another errand")
        check_answers(report.answers, who.tasks, self._plan.size)
        self._check_size(client, report)
        if report.afresh:
            self._say(f"client {client} ({self.members.names[client]}) had lost what it kept and began afresh")
        if visit.keep and report.wrote is not None:
            self.memory.write(client, {VERSION: torch.tensor(report.wrote)})
        answers.add(client, report.answers)

    def _check_size(self, client: int, report: Report) -> None:
        """A client weighs what it said it has. Who has other data by now is asked anew who it is."""
        said = self.members.known[client].train
        for answer in report.answers:
            if isinstance(answer, FitAnswer | ScoreAnswer) and answer.n != said:
                self.members.here.pop(client, None)
                raise WireError(f"has trained on {answer.n} samples after it said that it has {said}")

    def _opened(self, what: Parcel | Lost) -> object:
        if isinstance(what, Lost):
            raise WireError(what.why)
        self.traffic.up += what.size
        self.traffic.messages += 1
        found = read_as_server(what, self._limits)
        if isinstance(found, Refusal):
            raise WireError(f"could not: {found.reason}")
        return found

    def _send(self, letters: list[Letter], keep_for: float) -> list[str | None]:
        if not letters:
            return []
        self.traffic.messages += len(letters)
        self.traffic.down += sum(letter.parcel.size for letter in letters)
        return self._post.send(letters, keep_for)

    def _miss_the_gone(self, waiting: dict[str, _Asked], missing: dict[int, Missing]) -> None:
        """Who is no longer connected is not waited for."""
        present = set(self._post.present())
        for ticket, who in list(waiting.items()):
            if self.members.here.get(who.client) not in present:
                del waiting[ticket]
                missing[who.client] = Missing(who.client, "left during the visit")
