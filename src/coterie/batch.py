"""A workbench that visits many clients at once.

What several clients compute with the same model (scoring centers, evaluation) is one pass over their samples together;
training is one computation where the network allows it (`dense`), and one client after another where it does not.
Every answer is the one the plain workbench gives, to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile

import torch
from torch import Tensor

from coterie.beside import Beside
from coterie.client import Answer, Call, Done, HasClients, Moment, OneVisit, Workbench
from coterie.dense import Layer, bytes_of, in_span, layers_of, steps_of, train_together
from coterie.judge import judge_together
from coterie.local import Trained
from coterie.model import Model
from coterie.tasks import Best, Estimated, Evaluate, Fit, Mix, Own, Posterior, Score, Task

GROUP = 32  # clients trained as one, at most ...
CACHE = 1 << 20  # ... and as many as go through so many bytes together, step by step: beyond, memory is the limit
LIKE = 2  # ... and whose numbers of steps and of samples differ by no more than this factor
SAMPLES = 4096  # scored in one pass


class Batch(Workbench):
    """Visits clients together."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.layers = layers_of(model)
        self.beside = Beside.of(model)

    def visit_all(self, calls: Sequence[Call], source: HasClients, moment: Moment) -> list[Done | Exception]:
        """See `Workbench.visit_all`."""
        judged = judge_together(self, calls, source)
        if judged is not None:
            return [answer if isinstance(answer, Exception) else Done((answer,), {}) for answer in judged]
        under_way = [_UnderWay(self, call, source, moment) for call in calls]
        for number in range(max((len(call.tasks) for call in calls), default=0)):
            meant = [one for one in under_way if one.error is None and one.call.tasks[number] is not None]
            if meant:
                task = meant[0].call.tasks[number]
                assert task is not None
                self._answer(task, number, meant)
            for one in under_way:
                if one.call.tasks[number] is None:
                    one.answers.append(None)
        return [one.error or Done(tuple(one.answers), one.visit.written) for one in under_way]

    def _answer(self, task: Task, number: int, meant: list[_UnderWay]) -> None:
        for centers in _scored(task):
            self._score(centers, meant)
        match task:
            case Fit() if self.layers is not None:
                self._fit(task, number, meant)
            case Evaluate():
                self._evaluate(task, number, meant)
            case _:
                for one in meant:
                    one.do(lambda one=one: one.visit.answer(task, number))  # type: ignore[misc]

    # ----------------------------------------------------------------------------------------------------- scoring

    def _score(self, centers: Tensor, meant: Sequence[_UnderWay]) -> None:
        """What every center says of everyone's training samples, put where the visits look for it."""
        if self.frozen.mixes:  # everyone on their own: what is said of a sample depends on those beside it
            return
        new = [one for one in meant if one.error is None and id(centers) not in one.visit.scored]
        for some in _portions([one for one in new if one.train is not None]):
            samples = [one.train for one in some if one.train is not None]
            try:
                logits = self._center_logits(centers, torch.cat([x for x, _ in samples]))
            except (RuntimeError, ValueError):  # samples that do not go together: everyone on their own
                continue
            for one, part in zip(some, logits.split([len(y) for _, y in samples], 1), strict=True):
                one.visit.scored[id(centers)] = part

    def _center_logits(self, centers: Tensor, x: Tensor) -> Tensor:
        if self.beside is not None:
            return self.beside.say(centers, x)
        return torch.stack([self.frozen.load(center).logits(x) for center in centers])

    # -------------------------------------------------------------------------------------------------- evaluation

    def _evaluate(self, task: Evaluate, number: int, meant: Sequence[_UnderWay]) -> None:
        """Clients that use the same models are evaluated in one pass."""
        groups: dict[tuple[int, ...], list[_UnderWay]] = {}
        for one in meant:
            one.attempt(lambda one=one: one.resolve(task))  # type: ignore[misc]
            if one.error is None:
                groups.setdefault(tuple(theta.data_ptr() for theta, _ in one.resolved), []).append(one)
        for group in groups.values():
            for some in ([one] for one in group) if self.frozen.mixes else _portions(group, of="test"):
                try:
                    whole = torch.cat([one.seen[0] for one in some])
                    said = [self.frozen.load(theta).logits(whole).clone() for theta, _ in some[0].resolved]
                    parts = torch.stack(said).split([len(one.seen[1]) for one in some], 1)
                except (RuntimeError, ValueError):
                    for one in some:
                        one.do(lambda one=one: one.visit.evaluate(task))  # type: ignore[misc]
                    continue
                for one, part in zip(some, parts, strict=True):
                    one.do(lambda one=one, part=part: one.judge(task, part))  # type: ignore[misc]

    # ---------------------------------------------------------------------------------------------------- training

    def _fit(self, task: Fit, number: int, meant: Sequence[_UnderWay]) -> None:
        """Clients with about as many steps to go are trained as one."""
        layers = self.layers
        assert layers is not None
        for one in meant:
            one.attempt(lambda one=one: one.prepare(task, number, layers))  # type: ignore[misc]
        ready = [one for one in meant if one.error is None]
        for group in self._groups(ready):
            try:
                works = [one.work for one in group]
                results: list[Trained | None] = [*train_together(layers, self.loss, works, self.blocks)]
            except (RuntimeError, ValueError):
                results = [None] * len(group)
            for one, result in zip(group, results, strict=True):
                if result is None:
                    one.do(lambda one=one: one.visit.fit(task, number))  # type: ignore[misc]
                else:
                    one.do(lambda one=one, result=result: one.visit.finish(task, result, one.choice))  # type: ignore[misc]

    def _groups(self, ready: Sequence[_UnderWay]) -> Iterator[list[_UnderWay]]:
        kinds: dict[tuple[bool, ...], list[_UnderWay]] = {}
        for one in ready:
            work = one.work
            kind = (work.proximal is None, work.offset is None, work.weights is None, one.in_span)
            kinds.setdefault(kind, []).append(one)
        for alike in kinds.values():
            # A group's first client is its longest and largest, the rest may not be much shorter or smaller.
            queue = sorted(alike, key=lambda one: (-one.steps, -one.samples, one.call.client))
            while queue:
                first = queue[0]
                room = max(1, min(GROUP, CACHE // first.bytes))
                group = list(takewhile(first.is_like, queue[:room]))
                queue = queue[len(group) :]
                yield group


class _UnderWay:
    """One client's visit between two tasks."""

    def __init__(self, bench: Batch, call: Call, source: HasClients, moment: Moment) -> None:
        self.call, self.error = call, None
        self.answers: list[Answer | None] = []
        self.attempt(lambda: self._begin(OneVisit(bench, call.client, source.client(call.client), {}, moment)))

    error: Exception | None

    def _begin(self, visit: OneVisit) -> None:
        self.visit = visit
        visit.keeps.update(self.call.keeps)

    def attempt(self, what: Callable[[], object]) -> None:
        """Do something; what goes wrong is this client's affair."""
        try:
            what()
        except Exception as error:
            self.error = error

    def do(self, what: Callable[[], Answer]) -> None:
        """Answer a task."""
        self.attempt(lambda: self.answers.append(what()))

    @property
    def train(self) -> tuple[Tensor, Tensor] | None:
        """The training samples, if they can be had."""
        try:
            return self.visit.data.train
        except Exception:  # told when the task itself is tried
            return None

    def resolve(self, task: Evaluate) -> None:
        """Which models, and on which samples."""
        self.resolved = [self.visit.resolve(ref) for ref in task.models]
        self.seen = self.visit.data.test if task.split == "test" else self.visit.data.train

    def judge(self, task: Evaluate, logits: Tensor) -> Answer:
        """The score of what the models said."""
        y = self.seen[1]
        return self.visit.judge(task, self.resolved, logits if len(y) else None, y)

    def prepare(self, task: Fit, number: int, layers: Sequence[Layer]) -> None:
        """What its training needs, and about how much of it there is."""
        self.work, self.choice, _ = self.visit.prepare(task, number)
        self.samples = len(self.work.y)
        self.steps = steps_of(self.samples, self.work.local)
        self.in_span = in_span(self.work, layers[0])
        self.bytes = bytes_of(self.work, layers, self.in_span)

    def is_like(self, other: _UnderWay) -> bool:
        """Whether one that is not longer can be trained beside it without much waiting and filling up."""
        return other.steps * LIKE >= self.steps and other.samples * LIKE >= self.samples


def _portions(group: Sequence[_UnderWay], of: str = "train") -> Iterator[list[_UnderWay]]:
    """Clients whose samples make up one pass."""
    some: list[_UnderWay] = []
    many = 0
    for one in group:
        n = len(one.seen[1]) if of == "test" else len((one.train or ((), ()))[1])
        if some and many + n > SAMPLES:
            yield some
            some, many = [], 0
        some.append(one)
        many += n
    if some:
        yield some


def _scored(task: Task) -> list[Tensor]:
    """The sets of centers whose losses on a client's samples a task asks for."""
    found: list[Tensor] = []

    def look(ref: object) -> None:
        match ref:
            case Best(centers) | Estimated(centers):
                found.append(centers)
            case Mix(_, weights):
                look(weights)
            case Own(_, default):
                look(default)
            case Posterior(centers, _, prior):
                found.append(centers)
                look(prior)
            case _:
                pass

    match task:
        case Fit():
            for ref in (task.start, task.anchor, task.offset, task.weights):
                look(ref)
        case Score():
            found.append(task.centers)
        case Evaluate():
            for ref in (*task.models, task.mixture, task.belongs):
                look(ref)
    return found
