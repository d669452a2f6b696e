"""One visit to one client: tasks become answers.

Every engine calls this through a `TaskRunner`; nothing else computes on client data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from coterie.client.answers import Answer, DescribeAnswer, EvaluateAnswer, FitAnswer, Moment, ScoreAnswer
from coterie.client.data import ClientData, samples_of
from coterie.client.describe import described
from coterie.client.evaluation import answers_of
from coterie.client.placement import Placement
from coterie.client.resolve import Outputs, Resolver, votes
from coterie.client.training import LocalTraining, TrainingResult, train
from coterie.client.updates import Proximal
from coterie.core.compute import HOST, Compute, seed_device
from coterie.core.errors import not_finite
from coterie.core.local import Local
from coterie.core.model import Model, as_network, combined
from coterie.core.references import Personal, personal_of
from coterie.core.seeds import Purpose, draw_seed, generator
from coterie.core.sketch import sketch
from coterie.core.tables import ByClient
from coterie.core.tasks import Describe, Evaluate, Fit, Score, Task

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
