"""One visit to one client: references become vectors, tasks become answers.

Every engine calls this through a `TaskRunner`; nothing else computes on client data.

`TaskRunner` visits one client after another: the reference that every engine's arithmetic is compared with.

`Placement` is for accelerators: models and samples go up once, answers come down once. On the CPU everything is where
it is, and nothing here does anything.

`chosen` records what clients chose by their own data: a trained run can then be used without that data.

`Best` (a client takes the center of least loss) and `Estimated` (it estimates its share in each center) need a client's
training samples. After an evaluation both are known, and `settled` puts what was chosen in their place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from coterie.client.contract import (
    Answer,
    ClientData,
    ClientDataSource,
    ClientTasks,
    DescribeAnswer,
    EvaluateAnswer,
    FitAnswer,
    Moment,
    Samples,
    ScoreAnswer,
    VisitResult,
    samples_of,
)
from coterie.client.evaluation import answers_of, described
from coterie.client.training import LocalTraining, Proximal, TrainingResult, train
from coterie.core.allocation import BufferPool
from coterie.core.compute import HOST, Compute, seed_device
from coterie.core.errors import CoterieError, not_finite
from coterie.core.local import Local
from coterie.core.model import Model, Replica, as_network, combined
from coterie.core.objective import sample_losses
from coterie.core.references import (
    All,
    Best,
    Estimated,
    Mix,
    OneRow,
    Own,
    Personal,
    Pick,
    Posterior,
    Ref,
    Row,
    personal_of,
    substitute,
    walk,
)
from coterie.core.seeds import Purpose, draw_seed, generator
from coterie.core.sketch import sketch
from coterie.core.tables import ByClient
from coterie.core.tasks import Describe, Evaluate, Evaluated, Fit, Score, Task
from coterie.data.federation import Federation, Split
from coterie.data.scale import TargetScale

Outputs: TypeAlias = Callable[[Sequence[Tensor], Tensor], Tensor]


class Resolver:
    """Resolves references for one client. Predictions are cached: the tasks of a visit often use the same models."""

    def __init__(
        self, replica: Replica, client: int, data: ClientData, keeps: dict[str, Tensor], outputs: Outputs
    ) -> None:
        """replica: the network for predictions; outputs: those (G, n, outputs) of models for samples."""
        self.replica, self.client, self.data, self.keeps, self.outputs = replica, client, data, keeps, outputs
        self.written: dict[str, Tensor] = {}  # what the client keeps of this visit
        # (K, n, outputs) of the training samples, by the ids of the centers and of what is personal of them.
        self.center_outputs: dict[tuple[int, int | None], Tensor] = {}
        self.model_outputs: dict[Ref, Tensor] = {}  # (n, outputs) of one model

    def resolve(self, ref: Ref) -> tuple[Tensor, int | None]:
        """The vector a reference means for this client, and the row it is, if it is one."""
        match ref:
            case All() | Pick() | Row() | Best():
                shared, row = self.picked(ref)
                return self.joined(shared, ref.personal), row
            case Mix(centers, weights):
                mixture = self.value(weights) if isinstance(weights, ByClient) else self.resolve(weights)[0]
                return mixture.to(centers) @ centers, None
            case Estimated():
                return self._estimate(ref), None
            case Own(slot, default):
                kept = self.kept(slot)
                if kept is None:
                    return self.resolve(default)
                # The kept value is used in place of a row that the server or the client chose; that row is reported.
                return kept, self.resolve(default)[1] if isinstance(default, OneRow) else None

    def begun(self, ref: Ref) -> tuple[Tensor, int | None]:
        """The same for a training, which begins with the client's own values as they are: it fits them itself."""
        if not isinstance(ref, All | OneRow) or ref.personal is None:
            return self.resolve(ref)
        shared, row = self.picked(ref)
        return self.put_together(shared, self.resolve(ref.personal.own)[0], ref.personal), row

    def picked(self, ref: All | OneRow) -> tuple[Tensor, int | None]:
        """The server's vector that is meant for this client, and the row it is, if it is one."""
        match ref:
            case All(theta):
                return theta, None
            case Row(theta, number):
                return theta, number
            case Best(centers):
                row = self._best(ref)
                return centers[row], row
            case Pick(centers, labels):
                picked = ref.row_of(self.client)
                if picked is None:
                    raise CoterieError(
                        f"the server picked row {int(self.value(labels))} of {len(centers)}", code="task-invalid"
                    )
                return centers[picked], picked

    def joined(self, shared: Tensor, personal: Personal | None) -> Tensor:
        """A model of the server's with the client's own values where they belong."""
        if personal is None:
            return shared
        if personal.tune is not None and personal.own.slot not in self.keeps:
            return self.tuned(shared, personal)
        return self.put_together(shared, self.resolve(personal.own)[0], personal)

    def put_together(self, shared: Tensor, own: Tensor, personal: Personal) -> Tensor:
        """A whole model out of its two parts."""
        mine = self.replica.section(personal.section)
        many = int(mine.sum())
        if (len(own), len(shared)) != (many, len(mine) - many):
            raise CoterieError(
                f"a personal section of {len(own)} numbers and {len(shared)} shared ones do not fit this network of "
                f"{len(mine)}, of which {many} are personal",
                code="model-size",
            )
        whole = shared.new_empty(len(mine))
        whole[mine], whole[~mine] = own, shared
        return whole

    def tuned(self, shared: Tensor, personal: Personal) -> Tensor:
        """A model whose personal section is trained here and now, with the rest frozen: see `visit`."""
        raise NotImplementedError

    def compared(self, center: Tensor, personal: Personal | None) -> Tensor:
        """A center as it is compared with others."""
        tune = personal is not None and personal.tune is not None
        return self.tuned(center, personal) if tune and personal is not None else self.joined(center, personal)

    def value(self, table: ByClient) -> Tensor:
        """This client's value."""
        value = table.get(self.client)
        if value is None:
            raise CoterieError(
                "the server has no value for this client (no cluster, no weights), and no default",
                code="client-no-value",
            )
        return value

    def kept(self, slot: str) -> Tensor | None:
        """What the client keeps under this name, where it is computed; None if nothing."""
        value = self.keeps.get(slot)
        if value is None or value.device == self.replica.device:
            return value
        self.keeps[slot] = there = value.to(self.replica.device)
        return there

    def keep(self, slot: str, value: Tensor) -> None:
        """Keep a value at the client, and forget what was computed from the one before."""
        self.keeps[slot] = self.written[slot] = value
        self.model_outputs = {ref: outputs for ref, outputs in self.model_outputs.items() if not _reads(ref, slot)}
        self.center_outputs = {key: outputs for key, outputs in self.center_outputs.items() if key[1] is None}

    def center_logits(self, centers: Tensor, given: Ref | None, personal: Personal | None = None) -> Tensor:
        """The logits of every center for the training samples (K, n, outputs), plus those of the model `given`."""
        key = id(centers), None if personal is None else id(personal)
        if key not in self.center_outputs:
            x, _ = self.data.train
            self.center_outputs[key] = self.outputs([self.compared(center, personal) for center in centers], x)
        logits = self.center_outputs[key]
        return logits if given is None else logits + self.logits(given)

    def _best(self, ref: Best) -> int:
        if ref.by == "loss":
            return int(self.losses(ref.centers, ref.given, ref.personal).mean(1).argmin())
        if self.replica.loss != "cross_entropy":
            raise CoterieError("a model is chosen by accuracy only where labels are classes", code="task-invalid")
        logits = self.center_logits(ref.centers, ref.given, ref.personal)
        wrong = (logits.argmax(2) != self.data.train[1]) | ~logits.isfinite().all(2)
        return int(wrong.sum(1).argmin())

    def _estimate(self, ref: Estimated) -> Tensor:
        losses = self.losses(ref.centers, None)
        if ref.rule == "votes":
            return votes(losses)
        losses = losses + self.class_logs(ref.class_shares, losses)
        weights = losses.new_full((len(ref.centers),), 1 / len(ref.centers))
        for _ in range(ref.steps):
            weights = torch.softmax(weights.log() - losses.T, dim=1).mean(0)
        return weights

    def losses(self, centers: Tensor, given: Ref | None, personal: Personal | None = None) -> Tensor:
        """The loss of every center on every training sample (K, n); a loss that is not finite is infinite."""
        y = self.data.train[1]
        rows = [sample_losses(logits, y, self.replica.loss) for logits in self.center_logits(centers, given, personal)]
        losses = torch.stack(rows).nan_to_num(nan=torch.inf, posinf=torch.inf)
        if not bool(losses.isfinite().all(1).any()):
            raise not_finite("every center has a loss on this client's data")
        return losses

    def logits(self, ref: Ref) -> Tensor:
        """The logits of a model for the training samples (n, outputs)."""
        if isinstance(ref, Own) and ref.slot not in self.keeps:
            return self.logits(ref.default)
        if ref not in self.model_outputs:
            theta, row = self.resolve(ref)
            if isinstance(ref, Best):  # to choose it, the logits of all were computed
                self.model_outputs[ref] = self.center_logits(ref.centers, None, ref.personal)[row].clone()
            else:
                self.model_outputs[ref] = self.outputs([theta], self.data.train[0])[0]
        return self.model_outputs[ref]

    def class_logs(self, shares: Tensor | None, losses: Tensor) -> Tensor:
        """log p_k(y) of every training sample (K, n), of the type of the losses; 0 without class shares."""
        if shares is None:
            return losses.new_zeros(())
        y = self.data.train[1]
        if self.replica.loss != "cross_entropy":
            raise CoterieError("class_shares: only where labels are classes", code="task-invalid")
        if int(y.max()) >= shares.shape[1]:
            raise CoterieError(
                f"class_shares: {shares.shape[1]} classes, this client has one of number {int(y.max())}",
                code="task-invalid",
            )
        return shares.to(losses).log()[:, y]

    def posterior(
        self,
        centers: Tensor,
        prior: Ref | None,
        given: Ref | None = None,
        shares: Tensor | None = None,
        personal: Personal | None = None,
    ) -> Tensor:
        """p(center | sample) for every sample (n, K)."""
        losses = self.losses(centers, given, personal)
        losses = (losses + self.class_logs(shares, losses)).T
        pi = losses.new_full((len(centers),), 1 / len(centers)) if prior is None else self.resolve(prior)[0]
        found = torch.softmax(pi.log() - losses, dim=1)
        if not bool(found.isfinite().all()):
            raise CoterieError(
                "no center with a finite loss has a prior above zero on this client's data", code="client-no-value"
            )
        return found

    def sample_weights(self, weights: Posterior) -> Tensor:
        """The weight of every training sample (n,)."""
        found = self.posterior(weights.centers, weights.prior, shares=weights.class_shares)
        return found[:, weights.component]


def _reads(ref: Ref, slot: str) -> bool:
    """Whether what a reference means depends on what the client keeps under this name."""
    return any(isinstance(node, Own) and node.slot == slot for node in walk(ref))


def votes(losses: Tensor) -> Tensor:
    """The share of samples on which each center has the least loss; the lowest index wins a tie."""
    return torch.bincount(losses.argmin(0), minlength=len(losses)) / losses.shape[1]


ROOM = 0.5  # share of a device's free memory that samples may fill, so that they need not be copied again
UNKNOWN = 1 << 30  # bytes that they may fill where the device does not say what is free
CARRIED = ("theta", "centers", "class_shares")  # the tensors of tasks and references, which are used at a client
T = TypeVar("T")


class Placement:
    """Moves tasks, samples and answers between the host and the device that computes clients."""

    def __init__(self, compute: Compute) -> None:
        self.device = torch.device(compute.device)
        self.host = self.device.type == "cpu"
        self._moment: Moment | None = None
        self._up: dict[int, tuple[Any, Any]] = {}  # by id: what went up in this visit, and what it is there
        self._down: dict[int, tuple[Tensor, Tensor]] = {}  # by id: what came down already
        self._source: Federation | None = None
        self._samples: dict[tuple[int, Split], Samples] = {}  # of that source
        self._room = 0 if self.host else int(ROOM * free_memory(self.device))  # bytes

    def up(self, tensor: Tensor) -> Tensor:
        """A tensor on the device. From pinned memory, so that the host need not wait for the copy."""
        if self.host:
            return tensor
        if self.device.type == "mps":  # it shares the host's memory
            return tensor.to(self.device)
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def tasks(self, tasks: Sequence[T], moment: Moment) -> tuple[T, ...]:
        """The tasks of a visit with their models on the device, where those of the same visit already may be."""
        if self.host:
            return tuple(tasks)
        if moment is not self._moment:
            self._moment, self._up = moment, {}
        return tuple(self._placed(task) for task in tasks)

    def _placed(self, node: Any) -> Any:
        """A task or reference with its models on the device. The same one gives the same one: caches go by identity."""
        if node is None:
            return None
        if id(node) not in self._up:
            found = substitute(node, self._placed)
            models: dict[str, Tensor | ByClient] = {
                name: self._model(carried) for name in CARRIED if (carried := getattr(node, name, None)) is not None
            }
            if isinstance(node, Mix) and isinstance(node.weights, ByClient):
                models["weights"] = ByClient(node.weights.ids, self._model(node.weights.values))
            self._up[id(node)] = node, replace(found, **models) if models else found
        return self._up[id(node)][1]

    def _model(self, tensor: Tensor) -> Tensor:
        if id(tensor) not in self._up:
            self._up[id(tensor)] = tensor, self.up(tensor)
        there: Tensor = self._up[id(tensor)][1]
        return there

    # ------------------------------------------------------------------------------------------------------- samples

    def client(self, source: ClientDataSource, client: int) -> ClientData:
        """A client's data on the device."""
        data = source.client(client)
        # Other sources may give other samples next time.
        return data if self.host else self.data(data, (source, client) if type(source) is Federation else None)

    def data(self, data: ClientData, kept: tuple[Federation, int] | None = None) -> ClientData:
        """Data on the device. kept: whose it is, if it never changes: it stays there while there is room."""
        return data if self.host or isinstance(data, _PlacedData) else _PlacedData(self, data, kept)

    def samples(self, data: ClientData, split: Split, kept: tuple[Federation, int] | None) -> Samples:
        """The samples of one split, on the device."""
        if kept is None:
            return self._samples_up(data, split)
        source, client = kept
        if source is not self._source:
            self._room += sum(x.nbytes + y.nbytes for x, y in self._samples.values())
            self._source, self._samples = source, {}
        found = self._samples.get((client, split))
        if found is None:
            found = self._samples_up(data, split)
            size = sum(part.nbytes for part in found)
            if size <= self._room:
                self._samples[client, split], self._room = found, self._room - size
        return found

    def _samples_up(self, data: ClientData, split: Split) -> Samples:
        x, y = samples_of(data, split)
        return self.up(x), self.up(y)

    def together(self, source: Federation, clients: Tensor, split: Split) -> tuple[Tensor, Tensor, Tensor]:
        """See `Federation.together`."""
        if self.host:
            return source.together(clients, split)
        parts = [samples_of(self.client(source, client), split) for client in clients.tolist()]
        x, y = (torch.cat(column) for column in zip(*parts, strict=True))
        return x, y, torch.tensor([len(own) for _, own in parts])

    # ------------------------------------------------------------------------------------------------------- answers

    def down(self, tensor: Tensor) -> Tensor:
        """A tensor on the host; the same one comes down once in a visit."""
        if self.host or tensor.device.type == "cpu":
            return tensor
        if id(tensor) not in self._down:
            self._down[id(tensor)] = tensor, tensor.cpu()
        return self._down[id(tensor)][1]

    def down_together(self, rows: Sequence[Tensor]) -> None:
        """Have tensors of one length come down in one copy, for `down`."""
        if not self.host and rows:
            for row, copy in zip(rows, torch.stack(list(rows)).cpu(), strict=True):
                self._down[id(row)] = row, copy

    def result(self, answers: Sequence[Answer | None], written: Mapping[str, Tensor]) -> VisitResult:
        """The result of a visit, on the host."""
        if self.host:
            return VisitResult(tuple(answers), written)
        keeps = {slot: self.down(value) for slot, value in written.items()}
        return VisitResult(tuple(self._answer(answer) for answer in answers), keeps)

    def forget(self) -> None:
        """A visit has ended: what came down for it is not needed again."""
        self._down = {}

    def _answer(self, answer: Answer | None) -> Answer | None:
        match answer:
            case FitAnswer():
                return replace(answer, theta=self._maybe(answer.theta), sketch=self._maybe(answer.sketch))
            case ScoreAnswer():
                return replace(answer, scores=self.down(answer.scores))
            case EvaluateAnswer():
                return replace(answer, shares=self._maybe(answer.shares))
            case DescribeAnswer():
                return replace(answer, row=self.down(answer.row))
        return None

    def _maybe(self, tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else self.down(tensor)


@dataclass(frozen=True, eq=False)
class _PlacedData:
    """A client's data on a device; a split is copied there when first asked for."""

    placement: Placement
    data: ClientData
    kept: tuple[Federation, int] | None

    @cached_property
    def train(self) -> Samples:
        return self.placement.samples(self.data, "train", self.kept)

    @cached_property
    def val(self) -> Samples:
        return self.placement.samples(self.data, "val", self.kept)

    @cached_property
    def test(self) -> Samples:
        return self.placement.samples(self.data, "test", self.kept)

    @property
    def target(self) -> TargetScale | None:
        return self.data.target

    @property
    def target_mean(self) -> Tensor:
        return self.data.target_mean


def free_memory(device: torch.device) -> int:
    """Bytes that are free on a device."""
    if device.type == "mps":
        return max(0, torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())
    ask = getattr(torch.get_device_module(device.type), "mem_get_info", None)
    return UNKNOWN if ask is None else int(ask(device)[0])


AUTO_CLIP = 1.0  # the gradient norm of `clip: auto`, where targets are standardised


class Networks:
    """The live networks of one process, used for one client after another."""

    def __init__(self, model: Model, copy: Callable[[Tensor], Tensor] = torch.clone, compute: Compute = HOST) -> None:
        """copy: how a trained model is taken out of the network that trained it."""
        self.loss, self.copy = model.loss, copy
        with torch.inference_mode(mode=False):  # a client may train before it predicts
            self.trained = model.replica(compute)
        self.frozen = model.replica(compute)  # to predict with while the other one trains
        self.outputs: Outputs = self.by_network
        self.placement = Placement(compute)

    def by_network(self, thetas: Sequence[Tensor], x: Tensor) -> Tensor:
        """What models predict, one after another: how `outputs` does it, unless an engine knows a faster way."""
        return torch.stack([self.frozen.load(theta).logits(x) for theta in thetas])


class ClientVisit(Resolver):
    """A visit to one client in progress."""

    def __init__(
        self, networks: Networks, client: int, data: ClientData, keeps: dict[str, Tensor], moment: Moment
    ) -> None:
        super().__init__(networks.frozen, client, data, keeps, networks.outputs)
        self.networks, self.moment = networks, moment
        self._tuned: dict[tuple[int, int], Tensor] = {}  # by the address of what is shared, and the id of the rest

    def answer(self, task: Task, number: int) -> Answer:
        """The answer to the visit's task of that number."""
        match task:
            case Fit():
                return self.fit(task, number)
            case Score():
                return self.score(task)
            case Evaluate():
                return self.evaluate(task)
            case Describe():
                return self.describe(task)

    def fit(self, task: Fit, number: int) -> FitAnswer:
        return self.train(task, *self.prepare(task, number))

    def train(self, task: Fit, work: LocalTraining, choice: int | None, seed: int) -> FitAnswer:
        """Train as prepared; seed: of what the network draws."""
        seed_device(self.replica.device, seed)
        loss, state = train(
            self.networks.trained.load(work.start),
            work.x,
            work.y,
            work.local,
            work.rng,
            lr=work.lr,
            proximal=work.proximal,
            offset=work.offset,
            weights=work.weights,
            state=work.state,
            clip=work.clip,
            only=work.only,
        )
        return self.finish(task, TrainingResult(self.networks.copy(self.networks.trained.theta), loss, state), choice)

    def prepare(self, task: Fit, number: int) -> tuple[LocalTraining, int | None, int]:
        """Everything a training needs, the row it starts from if it is one, and the seed of what the network draws."""
        moment = self.moment
        rng = generator(moment.seed, Purpose.BATCHES, moment.round, moment.task + number, self.client)
        start, choice = self.begun(task.start)
        mu = float(self.value(task.mu)) if isinstance(task.mu, ByClient) else task.mu
        anchor = None if task.anchor is None else self.begun(task.anchor)[0]
        offset = None if task.offset is None else self.logits(task.offset)
        weights = None if task.weights is None else self.sample_weights(task.weights)
        x, y = self.data.train
        if task.half is not None:
            take = self.half(task.half, len(y)).to(y.device)
            x, y = x[take], y[take]
            offset, weights = (None if t is None else t[take] for t in (offset, weights))
        seed = draw_seed(rng)  # of dropout and other random layers
        work = LocalTraining(
            *(start, x, y, task.local, rng),
            lr=task.local.rate * task.local.lr_decay**moment.round,
            proximal=None if anchor is None or not mu else Proximal(anchor, mu),
            offset=offset,
            weights=weights,
            state=self.kept(task.optimizer_slot) if task.keeps_optimizer else None,
            clip=self.clip(task.local),
            only=self.trained_only(task),
        )
        return work, choice, seed

    def tuned(self, shared: Tensor, personal: Personal) -> Tensor:
        """See `Resolver.tuned`. The batches are the same in every visit, so that a prediction is, too."""
        key, local = (shared.data_ptr(), id(personal)), personal.tune
        if key not in self._tuned:
            assert local is not None
            start = self.put_together(shared, self.resolve(personal.own.default)[0], personal)
            rng = generator(0, Purpose.NEWCOMERS, self.client)
            seed_device(self.replica.device, draw_seed(rng))
            only = self.replica.section(personal.section)
            with torch.inference_mode(mode=False), torch.enable_grad():  # a prediction may ask for this
                x, y = (t.clone() if t.is_inference() else t for t in self.data.train)
                train(self.networks.trained.load(start), x, y, local, rng, clip=self.clip(local), only=only)
            self._tuned[key] = self.networks.trained.theta.clone()
        return self._tuned[key]

    def trained_only(self, task: Fit) -> Tensor | None:
        """Which entries of the vector a task trains; None: all."""
        if task.train is None and task.freeze is None:
            return None
        only = torch.ones_like(self.replica.theta, dtype=torch.bool)
        if task.train is not None:
            only &= self.replica.section(task.train)
        return only if task.freeze is None else only & ~self.replica.section(task.freeze)

    def half(self, half: int, n: int) -> Tensor:
        """Which of n samples are in one of two random halves, the same in every round; a single one is in both."""
        order = torch.from_numpy(generator(self.moment.seed, Purpose.HALVES, self.client).permutation(n))
        first = (n + 1) // 2
        return order[:first] if half == 0 or n < 2 else order[first:]

    def clip(self, local: Local) -> float | None:
        """The largest norm of a gradient. For standardised targets the scale is known: 1 keeps steps bounded."""
        if local.clip == "auto":
            return None if self.data.target is None else AUTO_CLIP
        return None if local.clip == "off" else local.clip

    def finish(self, task: Fit, trained: TrainingResult, choice: int | None) -> FitAnswer:
        """What the client sends to the server and keeps of a training."""
        personal = personal_of(task.start)
        sent_or_kept = task.send or task.save is not None or (personal is not None and task.keep)
        theta = self.networks.placement.down(trained.theta) if sent_or_kept else trained.theta
        # If the sum is finite, all values are. It may overflow, so all values are checked if it is not.
        if not math.isfinite(float(theta.sum())) and not bool(theta.isfinite().all()):
            raise not_finite("training gave a model")
        sketched = None
        if task.sketch is not None:  # before a kept value is replaced: training may have started there
            size = len(self.networks.trained.weights)
            update = (trained.theta - self.begun(task.start)[0])[:size]
            if personal is not None:
                update = update[~self.replica.section(personal.section)[:size]]
            sketched = sketch(update, task.sketch)
        if task.save is not None:
            self.keep(task.save, trained.theta)
        if task.keeps_optimizer:
            self.keep(task.optimizer_slot, trained.state)
        sent = trained.theta if task.send else None
        if personal is not None:
            mine = self.replica.section(personal.section).to(theta.device)
            sent = theta[~mine] if task.send else None
            if task.keep:
                self.keep(personal.own.slot, theta[mine])
        return FitAnswer(len(self.data.train[1]), trained.loss, sent, choice, sketched)

    def score(self, task: Score) -> ScoreAnswer:
        if task.rule in ("posterior", "classes"):
            found = self.posterior(task.centers, task.prior, task.given, task.class_shares, task.personal)
            scores = found.mean(0) if task.rule == "posterior" else self.by_class(found, task)
        else:
            losses = self.losses(task.centers, task.given, task.personal)
            scores = losses.mean(1) if task.rule == "loss" else votes(losses)
        if task.save is not None:
            self.keep(task.save, scores)
        return ScoreAnswer(len(self.data.train[1]), scores)

    def by_class(self, posterior: Tensor, task: Score) -> Tensor:
        """The sums of p(center | sample) (n, K) over the samples of each class, a row of K * classes numbers."""
        sums = posterior.new_zeros(task.width // posterior.shape[1], posterior.shape[1])
        return sums.index_add_(0, self.data.train[1], posterior).T.reshape(-1)

    def describe(self, task: Describe) -> DescribeAnswer:
        """A row that says what the training samples look like."""
        x, y = self.data.train
        features = x if task.model is None else self.replica.load(self.resolve(task.model)[0]).features(x)
        row = described(task, features, y).to(self.replica.theta.dtype)
        if not bool(row.isfinite().all()):
            raise not_finite("the description of the data has a value")
        return DescribeAnswer(len(x), row)

    def evaluate(self, task: Evaluate) -> EvaluateAnswer:
        """Predict for the samples of a split, and compare with their labels."""
        resolved = [self.resolve(ref) for ref in task.models]
        x, y = self.samples(task)
        logits = self.outputs([theta for theta, _ in resolved], x) if len(y) else None
        return self.evaluate_logits(task, resolved, logits, y)

    def samples(self, task: Evaluate) -> tuple[Tensor, Tensor]:
        """The samples that an evaluation is about."""
        x, y = samples_of(self.data, task.split)
        if task.half is None:
            return x, y
        take = self.half(task.half, len(y)).to(y.device)
        return x[take], y[take]

    def evaluate_logits(
        self, task: Evaluate, resolved: Sequence[tuple[Tensor, int | None]], logits: Tensor | None, y: Tensor
    ) -> EvaluateAnswer:
        """Compare the models' logits (models, n, outputs) with the labels; None where there are no samples."""
        choice = next((row for _, row in resolved if row is not None), None)
        belongs = task.belongs if task.belongs is not None else task.mixture
        shares = None if belongs is None else self.resolve(belongs)[0]
        if shares is not None:
            choice = int(shares.argmax())
        if logits is None:
            return EvaluateAnswer(0, 0.0, 0.0, 0.0, choice, shares)
        (answer,) = answers_of(
            *(self.networks.loss, self.combine(task, logits), y, [len(y)]),
            *(lambda: [self.data.target], lambda: self.data.target_mean[None]),
            *(choice, shares),
        )
        if isinstance(answer, Exception):
            raise answer
        return answer

    def predict(self, task: Evaluate, x: Tensor) -> Tensor:
        """What the client's model, or its models together, predict for these inputs."""
        return self.combine(task, self.outputs([self.resolve(ref)[0] for ref in task.models], x))

    def combine(self, task: Evaluate, logits: Tensor) -> Tensor:
        """One prediction (n, outputs) out of those of several models."""
        return combined(logits, self.mixture(task), task.average, self.networks.loss)

    def mixture(self, task: Evaluate) -> Tensor | None:
        return None if task.mixture is None else self.resolve(task.mixture)[0]

    def network(self, task: Evaluate) -> nn.Module:
        """The client's network, or its networks together, to keep."""
        thetas = [self.resolve(ref)[0] for ref in task.models]
        return as_network(self.replica, thetas, self.mixture(task), task.average)


class TaskRunner:
    """Visits clients one by one."""

    def __init__(self, model: Model, blocks: BufferPool | None = None, compute: Compute = HOST) -> None:
        """blocks: memory for trained models until they are gathered or kept; None: torch allocates it."""
        self.compute = compute
        self.networks = Networks(model, torch.clone if blocks is None else blocks.copy, compute)
        self.placement = self.networks.placement

    def visit(
        self,
        tasks: Sequence[Task | None],
        client: int,
        data: ClientData,
        keeps: Mapping[str, Tensor],
        moment: Moment,
    ) -> VisitResult:
        """Answer the tasks in their order (None: not for this client); later ones see what earlier ones saved."""
        return self._visit(tasks, client, self.placement.data(data), keeps, moment)

    def visit_one(self, call: ClientTasks, source: ClientDataSource, moment: Moment) -> VisitResult:
        """As `visit`, for a client whose data is found by its id."""
        data = self.placement.client(source, call.client)
        return self._visit(call.tasks, call.client, data, call.keeps, moment)

    def _visit(
        self,
        tasks: Sequence[Task | None],
        client: int,
        data: ClientData,
        keeps: Mapping[str, Tensor],
        moment: Moment,
    ) -> VisitResult:
        visit = ClientVisit(self.networks, client, data, dict(keeps), moment)
        placed = self.placement.tasks(tasks, moment)
        try:
            answers = [None if task is None else visit.answer(task, i) for i, task in enumerate(placed)]
            return self.placement.result(answers, visit.written)
        finally:
            self.placement.forget()

    def visit_all(
        self, calls: Sequence[ClientTasks], source: ClientDataSource, moment: Moment
    ) -> list[VisitResult | Exception]:
        """Visit clients one by one; an error at one client does not affect the others."""
        found: list[VisitResult | Exception] = []
        for call in calls:
            try:
                found.append(self.visit_one(call, source, moment))
            except Exception as error:
                found.append(error)
        return found

    def resolver(self, client: int, data: ClientData, keeps: Mapping[str, Tensor]) -> ClientVisit:
        """What references mean for this client, without a visit."""
        return ClientVisit(self.networks, client, data, dict(keeps), Moment(0, 0, 0))

    def predict(self, task: Evaluate, client: int, data: ClientData, keeps: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """What this client's model predicts for new inputs: logits (n, outputs)."""
        visit, placed = self._to_predict(task, client, data, keeps)
        return visit.predict(placed, self.placement.up(x)).cpu()

    def network(self, task: Evaluate, client: int, data: ClientData, keeps: Mapping[str, Tensor]) -> nn.Module:
        """The network that this client predicts with: a copy, which the caller may change."""
        visit, placed = self._to_predict(task, client, data, keeps)
        return visit.network(placed).cpu()

    def _to_predict(
        self, task: Evaluate, client: int, data: ClientData, keeps: Mapping[str, Tensor]
    ) -> tuple[ClientVisit, Evaluate]:
        moment = Moment(0, 0, 0)
        visit = ClientVisit(self.networks, client, self.placement.data(data), dict(keeps), moment)
        return visit, self.placement.tasks((task,), moment)[0]


Choice: TypeAlias = Best | Estimated


class Keeps(Protocol):
    """What clients keep between visits."""

    def read(self, client: int) -> Mapping[str, Tensor]:
        """What this client keeps."""


def open_choices(task: Evaluate) -> list[Choice]:
    """The references that depend on a client's own data, each once, in the order in which they occur."""
    found: list[Choice] = []
    for node in walk(task):
        if isinstance(node, Choice) and all(node is not other for other in found):
            found.append(node)
    return found


def needs_data(task: Evaluate, keeps: Mapping[str, Tensor]) -> bool:
    """Whether a client that keeps these values has to choose by its own data before it can predict."""
    predicts = replace(task, belongs=None)  # which is only reported
    untrained = (isinstance(node, Personal) and node.tune and node.own.slot not in keeps for node in walk(predicts))
    return any(isinstance(node, Choice) for node in walk(predicts, keeps)) or any(untrained)


def chosen(
    task: Evaluate, reply: Evaluated, model: Model, source: ClientDataSource | None, memory: Keeps
) -> tuple[Tensor, ...] | None:
    """What the clients of a reply chose: rows (n,) or shares (n, K) per open choice; None if it is not known.

    For every method of the library the reply contains it. If a method leaves several choices, `source` gives the data.
    """
    choices = open_choices(task)
    if not choices:
        return ()
    if len(choices) == 1:
        reported = _reported(task, choices[0], reply)
        if reported is not None:
            return (reported,)
    if source is None:
        return None
    networks, rows = Networks(model), []
    for client in reply.ids.tolist():
        visit = ClientVisit(networks, client, source.client(client), dict(memory.read(client)), Moment(0, 0, 0))
        rows.append([_found(*visit.resolve(choice)) for choice in choices])
    return tuple(torch.stack(column) for column in zip(*rows, strict=True))


def _found(theta: Tensor, row: int | None) -> Tensor:
    return theta.clone() if row is None else torch.tensor(row)


def _reported(task: Evaluate, choice: Choice, reply: Evaluated) -> Tensor | None:
    """A client's only choice, as its reply has it."""
    if isinstance(choice, Estimated):
        belongs = task.belongs if task.belongs is not None else task.mixture
        mine = belongs is not None and _is(belongs, choice)
        return reply.shares if mine else None
    telling = [ref for ref in task.models if _gives_row(ref)]
    return reply.choice if reply.shares is None and all(_is(ref, choice) for ref in telling) else None


def _is(ref: Ref, choice: Choice) -> bool:
    return ref is choice or (isinstance(ref, Own) and ref.default is choice)


def _gives_row(ref: Ref) -> bool:
    return isinstance(ref.default if isinstance(ref, Own) else ref, OneRow)


def settled(task: Evaluate, ids: Tensor, found: Sequence[Tensor]) -> Evaluate:
    """The same prediction for these clients, with what they chose in place of their choices: it needs no data."""
    choices = open_choices(task)
    places = {id(choice): values for choice, values in zip(choices, found, strict=True)}

    def settle(ref: Ref) -> Ref:
        match ref:
            case Best(centers):
                return Pick(centers, ByClient(ids, places[id(ref)]), ref.personal)
            case Estimated():
                return Pick(places[id(ref)], ByClient(ids, torch.arange(len(ids))))
            case Mix(centers, Estimated() as weights):
                return Mix(centers, ByClient(ids, places[id(weights)]))
            case _:
                return substitute(ref, settle)

    return substitute(task, settle)
