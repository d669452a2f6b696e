"""One visit to one client, wherever it lives: references become vectors, tasks become answers.

Every engine calls `Workbench.visit`; nothing else computes on client data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from coterie.blocks import MODEL, Blocks
from coterie.byclient import ByClient
from coterie.errors import CoterieError
from coterie.local import Proximal, Trained, Work, train
from coterie.metrics import accuracy_and_macro_f1
from coterie.model import Model, sample_losses
from coterie.seeds import Purpose, draw_seed, generator
from coterie.tasks import All, Best, Estimated, Evaluate, Fit, Mix, Own, Pick, Posterior, Ref, Row, Score, Task
from coterie.together import as_network, combined


class ClientData(Protocol):
    """What lies at a client: inputs and labels to train and to test on."""

    @property
    def train(self) -> tuple[Tensor, Tensor]: ...

    @property
    def test(self) -> tuple[Tensor, Tensor]: ...


class HasClients(Protocol):
    """Where clients' data is found by their ids."""

    def client(self, client: int) -> ClientData:
        """The data of one client."""


@dataclass(frozen=True, eq=False)
class FitAnswer:
    """A client's answer to a `Fit`."""

    n: int
    loss: float
    theta: Tensor | None
    choice: int | None


@dataclass(frozen=True, eq=False)
class ScoreAnswer:
    """A client's answer to a `Score`."""

    n: int
    scores: Tensor


@dataclass(frozen=True, eq=False)
class EvaluateAnswer:
    """A client's answer to an `Evaluate`."""

    n: int
    loss: float
    accuracy: float
    macro_f1: float
    choice: int | None
    shares: Tensor | None = None


Answer: TypeAlias = FitAnswer | ScoreAnswer | EvaluateAnswer


@dataclass(frozen=True)
class Moment:
    """When a visit happens: with the client's id, the key of its random plan."""

    seed: int
    round: int
    task: int  # the number of the visit's first task within the round


@dataclass(frozen=True, eq=False)
class Done:
    """What a successful visit leaves: an answer per task (None where not asked), and what the client now keeps."""

    answers: tuple[Answer | None, ...]
    keeps: Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Call:
    """A client to visit: what it is asked (None: not meant for it), and what it keeps."""

    client: int
    tasks: tuple[Task | None, ...]
    keeps: Mapping[str, Tensor]


class Workbench:
    """The live networks of one process, lent to one client after another."""

    def __init__(self, model: Model) -> None:
        self.loss = model.loss
        self.trained = model.replica()
        self.frozen = model.replica()
        self.blocks = Blocks(MODEL)  # where trained models lie until they are gathered or kept

    def visit(
        self,
        tasks: Sequence[Task | None],
        client: int,
        data: ClientData,
        keeps: Mapping[str, Tensor],
        moment: Moment,
    ) -> Done:
        """Answer the tasks in their order (None: not for this client); later ones see what earlier ones saved."""
        visit = OneVisit(self, client, data, dict(keeps), moment)
        answers = tuple(None if task is None else visit.answer(task, i) for i, task in enumerate(tasks))
        return Done(answers, visit.written)

    def visit_all(self, calls: Sequence[Call], source: HasClients, moment: Moment) -> list[Done | Exception]:
        """Visit clients one by one; what went wrong with one is its own affair."""
        found: list[Done | Exception] = []
        for call in calls:
            try:
                found.append(self.visit(call.tasks, call.client, source.client(call.client), call.keeps, moment))
            except Exception as error:
                found.append(error)
        return found

    def predict(self, task: Evaluate, client: int, data: ClientData, keeps: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """What this client's model says of new inputs: logits (n, outputs)."""
        return OneVisit(self, client, data, dict(keeps), Moment(0, 0, 0)).predict(task, x)

    def network(self, task: Evaluate, client: int, data: ClientData, keeps: Mapping[str, Tensor]) -> nn.Module:
        """The network that says it, a copy that is the caller's."""
        return OneVisit(self, client, data, dict(keeps), Moment(0, 0, 0)).network(task)


class OneVisit:
    """A visit to one client, under way."""

    def __init__(
        self, bench: Workbench, client: int, data: ClientData, keeps: dict[str, Tensor], moment: Moment
    ) -> None:
        self.bench, self.client, self.data, self.keeps, self.moment = bench, client, data, keeps, moment
        self.written: dict[str, Tensor] = {}
        # What models say of the training samples: the tasks of a visit often use the same ones.
        self.scored: dict[int, Tensor] = {}  # every center of a set (K, n, outputs), by its id
        self.heard: dict[Ref, Tensor] = {}  # one model (n, outputs)

    def answer(self, task: Task, number: int) -> Answer:
        match task:
            case Fit():
                return self.fit(task, number)
            case Score():
                return self.score(task)
            case Evaluate():
                return self.evaluate(task)

    # ------------------------------------------------------------------------------------ references

    def resolve(self, ref: Ref) -> tuple[Tensor, int | None]:
        """The vector a reference means for this client, and the row it is, if it is one."""
        match ref:
            case All(theta):
                return theta, None
            case Pick(centers, labels):
                row = int(self.value(labels))
                if not 0 <= row < len(centers):
                    raise CoterieError(f"the server picked row {row} of {len(centers)}")
                return centers[row], row
            case Row(theta, row):
                return theta, row
            case Best(centers, given, by):
                row = self.best(centers, given, by)
                return centers[row], row
            case Mix(centers, weights):
                mixture = self.value(weights) if isinstance(weights, ByClient) else self.resolve(weights)[0]
                return mixture.to(centers.dtype) @ centers, None
            case Estimated(centers, rule, steps):
                return self.estimate(centers, rule, steps), None
            case Own(slot, default):
                kept = self.keeps.get(slot)
                if kept is None:
                    return self.resolve(default)
                # What the client keeps stands in for a row that the server (or the client) chose: that choice is told.
                return kept, self.resolve(default)[1] if isinstance(default, Pick | Row | Best) else None

    def value(self, table: ByClient) -> Tensor:
        return table.at(torch.tensor([self.client]))[0]

    def keep(self, slot: str, value: Tensor) -> None:
        self.keeps[slot] = self.written[slot] = value
        self.heard = {ref: said for ref, said in self.heard.items() if not reads(ref, slot)}

    # ----------------------------------------------------------------------------------------- tasks

    def center_logits(self, centers: Tensor, given: Ref | None) -> Tensor:
        """What every center says of the training samples, with the logits of another model added (K, n, outputs)."""
        if id(centers) not in self.scored:
            x, _ = self.data.train
            self.scored[id(centers)] = torch.stack([self.bench.frozen.load(center).logits(x) for center in centers])
        logits = self.scored[id(centers)]
        return logits if given is None else logits + self.said(given)

    def best(self, centers: Tensor, given: Ref | None, by: Literal["loss", "accuracy"]) -> int:
        if by == "loss":
            return int(self.losses(centers, given).mean(1).argmin())
        logits = self.center_logits(centers, given)
        wrong = (logits.argmax(2) != self.data.train[1]) | ~logits.isfinite().all(2)
        return int(wrong.sum(1).argmin())

    def estimate(self, centers: Tensor, rule: Literal["votes", "posterior"], steps: int) -> Tensor:
        losses = self.losses(centers, None)
        if rule == "votes":
            return votes(losses)
        weights = losses.new_full((len(centers),), 1 / len(centers))
        for _ in range(steps):
            weights = torch.softmax(weights.log() - losses.T, dim=1).mean(0)
        return weights

    def losses(self, centers: Tensor, given: Ref | None) -> Tensor:
        """The loss of every center on every training sample (K, n); a loss that is not finite is infinite."""
        y = self.data.train[1]
        rows = [sample_losses(logits, y, self.bench.loss) for logits in self.center_logits(centers, given)]
        losses = torch.stack(rows).nan_to_num(nan=torch.inf, posinf=torch.inf)
        if not bool(losses.isfinite().all(1).any()):
            raise CoterieError("no center has a finite loss on this client's data")
        return losses

    def said(self, ref: Ref) -> Tensor:
        """What a model says of the training samples (n, outputs)."""
        if isinstance(ref, Own) and ref.slot not in self.keeps:
            return self.said(ref.default)
        if ref not in self.heard:
            theta, row = self.resolve(ref)
            if isinstance(ref, Best):  # to choose it, all were heard
                self.heard[ref] = self.center_logits(ref.centers, None)[row].clone()
            else:
                self.heard[ref] = self.bench.frozen.load(theta).logits(self.data.train[0]).clone()
        return self.heard[ref]

    def posterior(self, centers: Tensor, prior: Ref | None, given: Ref | None = None) -> Tensor:
        """p(center | sample) for every sample (n, K)."""
        losses = self.losses(centers, given).T
        pi = losses.new_full((len(centers),), 1 / len(centers)) if prior is None else self.resolve(prior)[0]
        found = torch.softmax(pi.log() - losses, dim=1)
        if not bool(found.isfinite().all()):
            raise CoterieError("no center with a finite loss has a prior above zero on this client's data")
        return found

    def sample_weights(self, weights: Posterior) -> Tensor:
        return self.posterior(weights.centers, weights.prior)[:, weights.component]

    def fit(self, task: Fit, number: int) -> FitAnswer:
        work, choice, seed = self.prepare(task, number)
        torch.default_generator.manual_seed(seed)
        loss, state = train(
            self.bench.trained.load(work.start),
            work.x,
            work.y,
            work.local,
            work.rng,
            lr=work.lr,
            proximal=work.proximal,
            offset=work.offset,
            weights=work.weights,
            state=work.state,
        )
        return self.finish(task, Trained(self.bench.blocks.copy(self.bench.trained.theta), loss, state), choice)

    def prepare(self, task: Fit, number: int) -> tuple[Work, int | None, int]:
        """Everything a training needs, the row it starts from if it is one, and the seed of what the network draws."""
        moment = self.moment
        rng = generator(moment.seed, Purpose.BATCHES, moment.round, moment.task + number, self.client)
        x, y = self.data.train
        start, choice = self.resolve(task.start)
        mu = float(self.value(task.mu)) if isinstance(task.mu, ByClient) else task.mu
        anchor = None if task.anchor is None else self.resolve(task.anchor)[0]
        offset = None if task.offset is None else self.said(task.offset)
        weights = None if task.weights is None else self.sample_weights(task.weights)
        seed = draw_seed(rng)  # of dropout and whatever else the network draws
        work = Work(
            *(start, x, y, task.local, rng),
            lr=task.local.lr * task.local.lr_decay**moment.round,
            proximal=None if anchor is None or not mu else Proximal(anchor, mu),
            offset=offset,
            weights=weights,
            state=self.keeps.get(task.optimizer_slot) if task.local.keep_optimizer else None,
        )
        return work, choice, seed

    def finish(self, task: Fit, trained: Trained, choice: int | None) -> FitAnswer:
        """What the server is told and the client keeps of a training."""
        # The sum tells cheaply that all is well; one that is not finite may also have overflowed, so then look closely.
        if not math.isfinite(float(trained.theta.sum())) and not bool(trained.theta.isfinite().all()):
            raise CoterieError(
                "training gave a model that is not finite (NaN or Inf): a smaller learning rate may help"
            )
        if task.save is not None:
            self.keep(task.save, trained.theta)
        if task.local.keep_optimizer:
            self.keep(task.optimizer_slot, trained.state)
        return FitAnswer(len(self.data.train[1]), trained.loss, trained.theta if task.send else None, choice)

    def score(self, task: Score) -> ScoreAnswer:
        if task.rule == "posterior":
            scores = self.posterior(task.centers, task.prior, task.given).mean(0)
        else:
            losses = self.losses(task.centers, task.given)
            scores = losses.mean(1) if task.rule == "loss" else votes(losses)
        if task.save is not None:
            self.keep(task.save, scores)
        return ScoreAnswer(len(self.data.train[1]), scores)

    def evaluate(self, task: Evaluate) -> EvaluateAnswer:
        resolved = [self.resolve(ref) for ref in task.models]
        x, y = self.data.test if task.split == "test" else self.data.train
        logits = torch.stack([self.bench.frozen.load(theta).logits(x) for theta, _ in resolved]) if len(y) else None
        return self.judge(task, resolved, logits, y)

    def judge(
        self, task: Evaluate, resolved: Sequence[tuple[Tensor, int | None]], logits: Tensor | None, y: Tensor
    ) -> EvaluateAnswer:
        """The score of what the models said (models, n, outputs); None where there was nothing to say."""
        choice = next((row for _, row in resolved if row is not None), None)
        belongs = task.belongs if task.belongs is not None else task.mixture
        shares = None if belongs is None else self.resolve(belongs)[0]
        if shares is not None:
            choice = int(shares.argmax())
        if logits is None:
            return EvaluateAnswer(0, 0.0, 0.0, 0.0, choice, shares)
        said = self.combine(task, logits)
        loss = float(sample_losses(said, y, self.bench.loss).mean())
        if not math.isfinite(loss):
            raise CoterieError("its model gives a loss that is not finite (NaN or Inf) on its data")
        if self.bench.loss == "mse":
            return EvaluateAnswer(len(y), loss, torch.nan, torch.nan, choice, shares)
        return EvaluateAnswer(len(y), loss, *accuracy_and_macro_f1(y, said.argmax(1)), choice, shares)

    def predict(self, task: Evaluate, x: Tensor) -> Tensor:
        """What the client's model, or models together, say of these inputs."""
        return self.combine(
            task, torch.stack([self.bench.frozen.load(self.resolve(ref)[0]).logits(x) for ref in task.models])
        )

    def combine(self, task: Evaluate, logits: Tensor) -> Tensor:
        """One prediction (n, outputs) out of those of several models."""
        return combined(logits, self.mixture(task), task.average, self.bench.loss)

    def mixture(self, task: Evaluate) -> Tensor | None:
        return None if task.mixture is None else self.resolve(task.mixture)[0]

    def network(self, task: Evaluate) -> nn.Module:
        """The client's network, or its networks together, to keep."""
        thetas = [self.resolve(ref)[0] for ref in task.models]
        return as_network(self.bench.frozen, thetas, self.mixture(task), task.average)


def reads(ref: Ref, slot: str) -> bool:
    """Whether what a reference means depends on what the client keeps there."""
    match ref:
        case Own(name, default):
            return name == slot or reads(default, slot)
        case Best(_, given):
            return given is not None and reads(given, slot)
        case _:
            return False


def votes(losses: Tensor) -> Tensor:
    """The share of samples on which each center has the least loss; the lowest index wins a tie."""
    return torch.bincount(losses.argmin(0), minlength=len(losses)) / losses.shape[1]
