"""A task runner that visits many clients at once.

What several clients compute with the same model (scoring centers, evaluation) is one pass over the samples of all;
training is one computation where the network allows it (`mlp`; on an accelerator `mapped`), and one client after
another where it does not: small convolutional networks by compiled code (`lanes`), where there is any.
Every answer is that of the sequential `TaskRunner`, up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import TypeAlias

import torch
from torch import Tensor

from coterie.client.batched.dense import bytes_of, layers_of, train_together, trains_low_rank
from coterie.client.batched.forward import stack_models
from coterie.client.batched.mapped import MappedTraining
from coterie.client.contract import (
    Answer,
    ClientDataSource,
    ClientTasks,
    EvaluateAnswer,
    FitAnswer,
    Moment,
    VisitResult,
)
from coterie.client.evaluation import answers_of
from coterie.client.lanes.network import LanesNetwork, LanesNetworks, regression_of
from coterie.client.training import LocalTraining, TrainingResult, steps_of
from coterie.client.visit import ClientVisit, Networks, TaskRunner
from coterie.core.allocation import MODEL, BufferPool
from coterie.core.compute import HOST, Compute
from coterie.core.errors import CoterieError
from coterie.core.model import Model, combined
from coterie.core.tasks import (
    All,
    Best,
    Estimated,
    Evaluate,
    Fit,
    Pick,
    Posterior,
    Score,
    Task,
    personal_of,
    rows_of,
    walk,
)
from coterie.data.federation import Federation

GROUP = 32  # clients trained together, at most ...
CACHE = 1 << 20  # ... whose steps use no more than so many bytes together: beyond, memory is the limit
GROUP_ON_DEVICE, MEMORY_ON_DEVICE = 1024, 1 << 29  # the same for an accelerator, which is the faster the more it has
LIKE = 2  # ... and whose numbers of steps and of samples differ by no more than this factor
SAMPLES = 4096  # scored in one pass


class BatchedTaskRunner(TaskRunner):
    """Visits clients together."""

    def __init__(self, model: Model, blocks: BufferPool | None = None, compute: Compute = HOST) -> None:
        self.blocks = blocks or BufferPool(MODEL, torch.device(compute.device))
        super().__init__(model, self.blocks, compute)
        # Low precision is a matter of the network's own layers.
        whole = compute.low_precision is None
        self.layers = layers_of(model) if whole else None
        self.stacked = stack_models(model) if whole else None
        self.lanes = LanesNetworks(model) if self._may_compile(model, compute) else None
        self.regression = regression_of(model, self.layers) if self.placement.host else None
        self.networks.outputs = self._outputs
        mapped = whole and not compute.compile and self.layers is None and not self.placement.host
        self.mapped = MappedTraining(self.networks.trained, self.blocks) if mapped else None

    @staticmethod
    def _may_compile(model: Model, compute: Compute) -> bool:
        on_host = torch.device(compute.device).type == "cpu"
        return on_host and compute.low_precision is None and layers_of(model) is None

    @classmethod
    def prepare(cls, model: Model, shape: tuple[int, ...], compute: Compute) -> None:
        """Before processes are started: what all of them use is compiled once, and here."""
        if cls._may_compile(model, compute):
            LanesNetworks(model).of(shape)
        elif torch.device(compute.device).type == "cpu" and compute.low_precision is None:
            regression_of(model, layers_of(model))

    def visit_all(
        self, calls: Sequence[ClientTasks], source: ClientDataSource, moment: Moment
    ) -> list[VisitResult | Exception]:
        """See `TaskRunner.visit_all`."""
        try:
            if not self.placement.host:
                calls = [replace(call, tasks=self.placement.tasks(call.tasks, moment)) for call in calls]
            return self._visit_all(calls, source, moment)
        finally:
            self.placement.forget()

    def _visit_all(
        self, calls: Sequence[ClientTasks], source: ClientDataSource, moment: Moment
    ) -> list[VisitResult | Exception]:
        evaluated = evaluate_together(self.networks, calls, source, self.logits)
        if evaluated is not None:
            return [answer if isinstance(answer, Exception) else VisitResult((answer,), {}) for answer in evaluated]
        visits = [_OngoingVisit(self, call, source, moment) for call in calls]
        for number in range(max((len(call.tasks) for call in calls), default=0)):
            asked = [one for one in visits if one.error is None and one.call.tasks[number] is not None]
            if asked:
                task = asked[0].call.tasks[number]
                assert task is not None
                self._answer(task, number, asked)
            for one in visits:
                if one.call.tasks[number] is None:
                    one.answers.append(None)
        return [one.error or self.placement.result(one.answers, one.visit.written) for one in visits]

    def _answer(self, task: Task, number: int, asked: list[_OngoingVisit]) -> None:
        for centers in _scored_centers(task):
            self._score(centers, asked)
        match task:
            case Fit() if self._trains_together(asked):
                self._fit(task, number, asked)
            case Fit() if self.lanes is not None:
                for one in asked:
                    one.do(lambda one=one: self._fit_alone(task, number, one.visit))  # type: ignore[misc]
            case Evaluate():
                self._evaluate(task, number, asked)
            case _:
                for one in asked:
                    one.do(lambda one=one: one.visit.answer(task, number))  # type: ignore[misc]

    # ----------------------------------------------------------------------------------------------------- scoring

    def _score(self, centers: Tensor, asked: Sequence[_OngoingVisit]) -> None:
        """Compute the logits of every center for everyone's training samples, and store them for the visits."""
        if self.networks.frozen.mixes:  # one by one: a prediction depends on the other samples of its batch
            return
        new = [one for one in asked if one.error is None and (id(centers), None) not in one.visit.center_outputs]
        for some in _portions([one for one in new if one.train is not None]):
            samples = [one.train for one in some if one.train is not None]
            try:
                logits = self._center_logits(centers, torch.cat([x for x, _ in samples]))
            except (RuntimeError, ValueError):  # samples of different shapes: one by one
                continue
            for one, part in zip(some, logits.split([len(y) for _, y in samples], 1), strict=True):
                one.visit.center_outputs[id(centers), None] = part

    def _center_logits(self, centers: Tensor, x: Tensor) -> Tensor:
        if self.stacked is not None and self._in_lanes(x) is None:
            return self.stacked.logits(centers, x)
        return self.logits(centers, x)

    def logits(self, thetas: Tensor, x: Tensor) -> Tensor:
        """The logits (G, n, outputs) of models (G, P)."""
        return self._outputs(thetas.unbind(0), x)

    def _outputs(self, thetas: Sequence[Tensor], x: Tensor) -> Tensor:
        network = self._in_lanes(x)
        if network is None or not all(network.reads(theta) for theta in thetas):
            return self.networks.by_network(thetas, x)
        return network.outputs(torch.stack(list(thetas)), x)

    def _in_lanes(self, x: Tensor) -> LanesNetwork | None:
        return None if self.lanes is None or x.dtype != torch.float32 else self.lanes.of(tuple(x.shape[1:]))

    # -------------------------------------------------------------------------------------------------- evaluation

    def _evaluate(self, task: Evaluate, number: int, asked: Sequence[_OngoingVisit]) -> None:
        """Clients that use the same models are evaluated in one pass."""
        groups: dict[tuple[int, ...], list[_OngoingVisit]] = {}
        for one in asked:
            one.attempt(lambda one=one: one.resolve(task))  # type: ignore[misc]
            if one.error is None:
                groups.setdefault(tuple(theta.data_ptr() for theta, _ in one.resolved), []).append(one)
        for group in groups.values():
            for some in ([one] for one in group) if self.networks.frozen.mixes else _portions(group, of="test"):
                try:
                    whole = torch.cat([one.samples[0] for one in some])
                    logits = self.logits(torch.stack([theta for theta, _ in some[0].resolved]), whole)
                    parts = logits.split([len(one.samples[1]) for one in some], 1)
                except (RuntimeError, ValueError):
                    for one in some:
                        one.do(lambda one=one: one.visit.evaluate(task))  # type: ignore[misc]
                    continue
                for one, part in zip(some, parts, strict=True):
                    one.do(lambda one=one, part=part: one.evaluate(task, part))  # type: ignore[misc]

    # ---------------------------------------------------------------------------------------------------- training

    def _trains_together(self, asked: Sequence[_OngoingVisit]) -> bool:
        """Whether there is one computation for these clients' training."""
        if self.layers is not None or self.mapped is None:
            return self.layers is not None
        samples = next((one.train for one in asked if one.train is not None), None)
        return samples is not None and self.mapped.fits(samples[0])

    def _fit(self, task: Fit, number: int, asked: Sequence[_OngoingVisit]) -> None:
        """Train clients with similar numbers of steps as one group."""
        for one in asked:
            one.attempt(lambda one=one: one.prepare(task, number, self._needs))  # type: ignore[misc]
        ready = [one for one in asked if one.error is None]
        for one in [one for one in ready if self.regression is not None and self.regression.reads(one.training)]:
            ready.remove(one)
            one.do(lambda one=one: self._regress(task, one))  # type: ignore[misc]
        for group in self._groups(ready):
            try:
                results: list[TrainingResult | None] = [*self._train([one.training for one in group])]
            except Exception:  # a loss of one's own may raise anything; one by one, so that the client is named
                results = [None] * len(group)
            self._bring_down(task, results)
            for one, result in zip(group, results, strict=True):
                if result is None:
                    one.do(lambda one=one: one.visit.fit(task, number))  # type: ignore[misc]
                else:
                    one.do(lambda one=one, result=result: one.visit.finish(task, result, one.choice))  # type: ignore[misc]

    def _train(self, trainings: Sequence[LocalTraining]) -> list[TrainingResult]:
        if trainings[0].span is None:
            raise ValueError("what is trained is not one piece of the vector")
        if self.layers is not None:
            return train_together(self.layers, self.networks.loss, trainings, self.blocks)
        assert self.mapped is not None
        return self.mapped.train(trainings)

    def _regress(self, task: Fit, one: _OngoingVisit) -> FitAnswer:
        assert self.regression is not None
        return one.visit.finish(task, self.regression.train(one.training, self.networks.copy), one.choice)

    def _needs(self, training: LocalTraining) -> tuple[bool, int]:
        """Whether the first layer trains in the span of the samples, and the memory that a step needs."""
        if self.layers is None:
            assert self.mapped is not None
            return False, self.mapped.bytes_of(training)
        low_rank = trains_low_rank(training, self.layers[0])
        return low_rank, bytes_of(training, self.layers, low_rank)

    def _fit_alone(self, task: Fit, number: int, visit: ClientVisit) -> FitAnswer:
        """Train one client in compiled code, or as the sequential engine does."""
        assert self.lanes is not None
        work, choice, seed = visit.prepare(task, number)
        network, least = self.lanes.for_training(work), self.networks.trained.least_batch(work.x)
        if network is None or len(work.y) < least:  # torch names what is wrong
            return visit.train(task, work, choice, seed)
        trained = network.train(work, least)
        return visit.finish(task, replace(trained, theta=self.networks.copy(trained.theta)), choice)

    def _bring_down(self, task: Fit, results: Sequence[TrainingResult | None]) -> None:
        """What the server or the clients' memory gets of a group, in one copy from the device."""
        trained = [result for result in results if result is not None]
        if task.send or task.save is not None or personal_of(task.start) is not None:
            self.placement.down_together([result.theta for result in trained])
        if task.keeps_optimizer:
            self.placement.down_together([result.state for result in trained])

    def _groups(self, ready: Sequence[_OngoingVisit]) -> Iterator[list[_OngoingVisit]]:
        kinds: dict[tuple[object, ...], list[_OngoingVisit]] = {}
        for one in ready:
            job = one.training
            kind = (job.proximal is None, job.offset is None, job.weights is None, one.low_rank, job.clip)
            kinds.setdefault(kind, []).append(one)
        for alike in kinds.values():
            # The first client of a group has the most steps and samples; the others may not have many fewer.
            queue = sorted(alike, key=lambda one: (-one.steps, -one.n, one.call.client))
            while queue:
                first = queue[0]
                many, most = (GROUP, CACHE) if self.placement.host else (GROUP_ON_DEVICE, MEMORY_ON_DEVICE)
                room = max(1, min(many, most // first.bytes))
                group = list(takewhile(first.is_like, queue[:room]))
                queue = queue[len(group) :]
                yield group


class _OngoingVisit:
    """One client's visit, between two tasks."""

    def __init__(self, runner: BatchedTaskRunner, call: ClientTasks, source: ClientDataSource, moment: Moment) -> None:
        self.call, self.error = call, None
        self.answers: list[Answer | None] = []
        self.attempt(
            lambda: self._begin(
                ClientVisit(runner.networks, call.client, runner.placement.client(source, call.client), {}, moment)
            )
        )

    error: Exception | None

    def _begin(self, visit: ClientVisit) -> None:
        self.visit = visit
        visit.keeps.update(self.call.keeps)

    def attempt(self, what: Callable[[], object]) -> None:
        """Call a function; an error ends the visit of this client only."""
        try:
            what()
        except Exception as error:
            self.error = error

    def do(self, what: Callable[[], Answer]) -> None:
        """Answer a task."""
        self.attempt(lambda: self.answers.append(what()))

    @property
    def train(self) -> tuple[Tensor, Tensor] | None:
        """The training samples; None if they cannot be loaded."""
        try:
            return self.visit.data.train
        except Exception:  # reported when the task itself is tried
            return None

    def resolve(self, task: Evaluate) -> None:
        """Which models, and on which samples."""
        self.resolved = [self.visit.resolve(ref) for ref in task.models]
        self.samples = self.visit.samples(task)

    def evaluate(self, task: Evaluate, logits: Tensor) -> Answer:
        """Compare the logits of the models with the labels."""
        y = self.samples[1]
        return self.visit.evaluate_logits(task, self.resolved, logits if len(y) else None, y)

    def prepare(self, task: Fit, number: int, needs: Callable[[LocalTraining], tuple[bool, int]]) -> None:
        """What its training needs, and how much work it is."""
        self.training, self.choice, _ = self.visit.prepare(task, number)
        self.n = len(self.training.y)
        self.steps = steps_of(self.n, self.training.local)
        self.low_rank, self.bytes = needs(self.training)

    def is_like(self, other: _OngoingVisit) -> bool:
        """Whether a client with no more steps can train together with this one without much waiting and padding."""
        return other.steps * LIKE >= self.steps and other.n * LIKE >= self.n


def _portions(group: Sequence[_OngoingVisit], of: str = "train") -> Iterator[list[_OngoingVisit]]:
    """Clients whose samples make up one pass."""
    some: list[_OngoingVisit] = []
    many = 0
    for one in group:
        n = len(one.samples[1]) if of == "test" else len((one.train or ((), ()))[1])
        if some and many + n > SAMPLES:
            yield some
            some, many = [], 0
        some.append(one)
        many += n
    if some:
        yield some


def _scored_centers(task: Task) -> list[Tensor]:
    """The sets of centers whose losses on a client's samples a task asks for."""
    scored = (node for node in walk(task) if isinstance(node, Best | Estimated | Posterior | Score))
    # Centers with a personal section are another model at each client.
    return [node.centers for node in scored if getattr(node, "personal", None) is None]


LogitsOf: TypeAlias = Callable[[Tensor, Tensor], Tensor]


def evaluate_together(
    networks: Networks, calls: Sequence[ClientTasks], source: ClientDataSource, logits_of: LogitsOf
) -> list[EvaluateAnswer | Exception] | None:
    """The answers, if clients are asked for nothing but an evaluation of models that the server names; else None.

    logits_of: the logits (G, n, outputs) of models (G, P) for samples.
    """
    task = _only_task(calls)
    # A subclass of Federation may prepare a client's samples in its own way.
    if task is None or type(source) is not Federation or networks.frozen.mixes:
        return None
    ids = torch.tensor([call.client for call in calls])
    models = [found for model in task.models if (found := rows_of(model, ids)) is not None]
    if len(models) < len(task.models):  # a client without a label: evaluated one by one, so that the reply names it
        return None
    picked = [isinstance(model, Pick) for model in task.models]
    try:
        rows = torch.stack([row for _, row in models], 1)
        answers: list[EvaluateAnswer | Exception] = [CoterieError("not evaluated", code="client-unable")] * len(calls)
        for combination in rows.unique(dim=0):
            thetas = [_row(centers, int(row)) for (centers, _), row in zip(models, combination, strict=True)]
            choice = next((int(row) for row, is_pick in zip(combination, picked, strict=True) if is_pick), None)
            same = torch.nonzero((rows == combination).all(1))[:, 0]
            for some in _portions_of(same, source, ids, task):
                scored = _evaluate(networks, task, logits_of, torch.stack(thetas), choice, source, ids[some])
                for place, answer in zip(some.tolist(), scored, strict=True):
                    answers[place] = answer
    except (CoterieError, RuntimeError, IndexError, ValueError):  # one by one, so that it is named
        return None
    return answers


def _only_task(calls: Sequence[ClientTasks]) -> Evaluate | None:
    """The evaluation of the server's models that all these clients are asked for."""
    task = calls[0].tasks[0] if calls and len(calls[0].tasks) == 1 else None
    if not isinstance(task, Evaluate) or task.mixture or task.belongs or task.half is not None:
        return None
    same = all(call.tasks[0] is task for call in calls)
    shared = (isinstance(model, All | Pick) and model.personal is None for model in task.models)
    return task if same and all(shared) else None


def _row(centers: Tensor, row: int) -> Tensor:
    if not 0 <= row < len(centers):
        raise CoterieError(f"the server picked row {row} of {len(centers)}", code="task-invalid")
    return centers[row]


def _portions_of(places: Tensor, source: Federation, ids: Tensor, task: Evaluate) -> Iterator[Tensor]:
    """Clients whose samples make up one pass."""
    lengths = source.rows(task.split).lengths[ids[places]]
    part = (lengths.cumsum(0) - lengths) // SAMPLES
    for number in part.unique():
        yield places[part == number]


def _evaluate(
    networks: Networks,
    task: Evaluate,
    logits_of: LogitsOf,
    thetas: Tensor,
    choice: int | None,
    source: Federation,
    ids: Tensor,
) -> Sequence[EvaluateAnswer | Exception]:
    x, y, lengths = networks.placement.together(source, ids, task.split)
    predicted, n = combined(logits_of(thetas, x), None, task.average, networks.loss), lengths.tolist()
    return answers_of(
        *(networks.loss, predicted, y, n),
        *(lambda: [source.client(client).target for client in ids.tolist()], lambda: source.target_means[ids]),
        choice,
    )
