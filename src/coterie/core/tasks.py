"""What a server asks of clients (fit, score, describe, evaluate), and what they answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, TypeAlias, get_args

import torch
from torch import Tensor

from coterie.core.aggregation import Aggregator
from coterie.core.errors import CoterieError
from coterie.core.local import Local
from coterie.core.parts import Section
from coterie.core.references import (
    Best,
    Personal,
    Pick,
    Posterior,
    Ref,
    check_class_shares,
    check_models,
    check_references,
    check_tensor,
    describe_value,
    length_of,
    personal_of,
)
from coterie.core.settings import explained
from coterie.core.tables import ByClient


@explained
@dataclass(frozen=True, eq=False)
class Fit:
    """Train from `start`: mean loss + mu/2 |theta - anchor|^2, with frozen logits and sample weights if given.

    An auxiliary training, which only serves to cluster clients or to place a newcomer, has keep=False: it
    starts with a fresh optimiser and leaves nothing at the client, regardless of `local`.
    """

    usage: ClassVar[str] = "Fit(All(w), local=self.local)"

    start: Ref
    local: Local
    anchor: Ref | None = None
    mu: float | ByClient = 0.0
    offset: Ref | None = None  # a frozen model whose logits are added to the trained model's own
    weights: Posterior | None = None
    save: str | None = None  # keep the result at the client under this name
    send: bool = True  # whether the result is sent to the server
    optimizer_slot: str = "optimizer"  # where a kept optimiser state lives
    keep: bool = True  # whether the client keeps anything of this training
    train: Section | None = None  # train only this section of the model; the rest, with its statistics, is frozen
    freeze: Section | None = None  # train all but this section
    half: Literal[0, 1] | None = None  # train on one of two random halves of the samples, the same two in every round
    sketch: int | None = None  # send a sketch of the update, of so many numbers (see `core.sketch`)
    on: Tensor | None = None  # ids; None is the whole cohort

    def __post_init__(self) -> None:
        check_references(self, "start", required=True)
        check_references(self, "anchor", "offset")
        if not isinstance(self.local, Local):
            raise CoterieError(f"Fit.local: expected Local(...), got {describe_value(self.local)}", code="task-invalid")
        if self.local.lr == "auto":
            raise CoterieError(
                "Fit.local: its learning rate is auto, which a run replaces by a number; write one here",
                code="task-invalid",
            )
        if self.sketch is not None and self.sketch < 1:
            raise CoterieError(f"Fit.sketch: at least 1 number, not {self.sketch}", code="task-invalid")
        if self.save is not None and personal_of(self.start) is not None:
            raise CoterieError(
                f"Fit: save='{self.save}' with a personal section: that is what the client keeps; leave save out",
                code="task-invalid",
            )
        if self.save is not None and not self.keep:
            raise CoterieError(
                f"Fit: save='{self.save}' with keep=False; a training that is to be kept has keep=True",
                code="task-invalid",
            )

    @property
    def keeps_optimizer(self) -> bool:
        """Whether the optimiser continues from the state that the client kept, and its state is kept again."""
        return self.keep and self.local.keep_optimizer

    def sends(self, size: int) -> int:
        """How many numbers come back of a model of this size: without what stays with the client."""
        if not self.send:
            return 0
        return size if personal_of(self.start) is None else min(length_of(self.start), size)

    @property
    def clusters(self) -> Tensor | None:
        """The cluster models (K, P) of which each client trains one; None where it trains another model, or none."""
        return self.start.centers if self.keep and isinstance(self.start, Pick | Best) else None


@explained
@dataclass(frozen=True, eq=False)
class Score:
    """How well each center fits the client's training data, a row of K numbers per client.

    loss: mean loss. votes: share of samples on which the center is the best (lowest index wins a tie).
    posterior: mean p(center | sample) under the prior. classes: the sum of p(center | sample) over the samples of each
    class, K * classes numbers; `class_shares` says how many classes there are.
    """

    centers: Tensor  # (K, P)
    rule: Literal["loss", "votes", "posterior", "classes"] = "loss"
    given: Ref | None = None
    prior: Ref | None = None  # a (K,) vector; uniform when None
    save: str | None = None  # keep the row at the client under this name
    personal: Personal | None = None  # what stays with the client of each center
    on: Tensor | None = None
    class_shares: Tensor | None = None  # (K, classes), see `Posterior`; for posterior and classes

    def __post_init__(self) -> None:
        check_tensor(self, "centers")
        check_references(self, "given", "prior")
        check_class_shares(self)
        if self.rule == "classes" and self.class_shares is None:
            raise CoterieError("Score: rule='classes' needs class_shares, a table (K, classes)", code="task-invalid")

    @property
    def width(self) -> int:
        """How many numbers a client answers."""
        if self.rule == "classes" and self.class_shares is not None:
            return self.class_shares.numel()
        return len(self.centers)


@explained
@dataclass(frozen=True, eq=False)
class Evaluate:
    """Predict with the sum (or average) of the models' logits or, given mixture weights, the mixture of their
    probabilities."""

    usage: ClassVar[str] = "Evaluate((All(w),))"

    models: tuple[Ref, ...]
    mixture: Ref | None = None  # a (len(models),) vector
    average: bool = False  # of the logits, instead of their sum
    belongs: Ref | None = None  # a (K,) vector that is reported as the client's share in each cluster
    split: Literal["train", "val", "test"] = "test"
    half: Literal[0, 1] | None = None  # only one half of those samples; of "train", the halves that `Fit` trains on
    on: Tensor | None = None

    def __post_init__(self) -> None:
        check_references(self, "mixture", "belongs")
        check_models(self.models)


Description: TypeAlias = Literal["moments", "subspace", "labels", "sketch"]
LONGEST = 1 << 16  # numbers in a description, at most


@explained
@dataclass(frozen=True, eq=False)
class Describe:
    """What the client's training data looks like, as one row of numbers per client.

    moments: mean and deviation of the latent features (what the last layer gets) of `model`, projected to `size`.
    subspace: the first `rank` left singular vectors of the raw inputs, projected to `size`, not centred.
    sketch: the mean of the raw inputs, projected to `size`.
    labels: the share of each of `size` labels; nothing but labels is read. The other kinds read no label unless
    `classes` is given: then moments and sketch are of all samples and of each label, subspace of each label alone, and
    what a client has no samples of is zeros.
    The projection is `core.sketch`: fixed, the same for everyone; what has fewer numbers is kept as it is, with zeros
    behind it. Labels count modulo their number; targets of a regression in bins of equal width from -3 to 3.
    """

    usage: ClassVar[str] = 'Describe("moments", size=16, model=All(w))'

    kind: Description
    size: int
    model: Ref | None = None  # of moments: the frozen encoder
    rank: int = 1  # of subspace
    classes: int = 0  # labels that are described each; 0: labels are not read
    on: Tensor | None = None

    def __post_init__(self) -> None:
        check_references(self, "model")
        if self.kind not in get_args(Description):
            raise CoterieError(f"Describe.kind: one of {', '.join(get_args(Description))}", code="task-invalid")
        if (self.model is not None) != (self.kind == "moments"):
            raise CoterieError(
                "Describe.model: moments are of the features of a model, the other kinds of the data alone; "
                f"write {self.usage}",
                code="task-invalid",
            )
        if (self.kind != "subspace" and self.rank != 1) or (self.kind == "labels" and self.classes):
            raise CoterieError(
                "Describe: rank is of subspace; classes of moments, subspace and sketch", code="task-invalid"
            )
        if min(self.size, self.rank) < 1 or self.classes < 0 or self.length > LONGEST:
            raise CoterieError(
                f"Describe: from 1 to {LONGEST} numbers, not {self.length}; choose another size", code="task-invalid"
            )

    @property
    def length(self) -> int:
        """How many numbers a client answers."""
        match self.kind:
            case "moments":
                return 2 * self.size * (1 + self.classes)
            case "sketch":
                return self.size * (1 + self.classes)
            case "subspace":
                return self.size * self.rank * max(1, self.classes)
            case "labels":
                return self.size


Task: TypeAlias = Fit | Score | Evaluate | Describe


class RemoteModels(Protocol):
    """Models (n, P) that are still stored where they were trained: their mean can be computed there."""

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def nbytes(self) -> int: ...

    def __len__(self) -> int: ...

    def combined(self, share: Tensor) -> Tensor:
        """share (K, n) @ models, computed where they are stored."""

    def gathered(self) -> Tensor:
        """All of them, brought here (once)."""

    def norms(self, choice: Tensor | None) -> Tensor:
        """The norm of each update (n,), computed where the models are stored (see `screening.norms_of`)."""


@explained
@dataclass(frozen=True, eq=False)
class Fitted:
    """Answers to a `Fit`, one row per client that answered, by ascending id."""

    ids: Tensor  # (n,)
    n: Tensor  # (n,) training samples
    loss: Tensor  # (n,) mean training loss over the visit's steps
    sent: Tensor | RemoteModels | None = None  # (n, P); for a mean of them pass the reply itself to `mean` or `mean_by`
    choice: Tensor | None = None  # (n,) which row a Pick or Best start was
    sketch: Tensor | None = None  # (n, size) sketches of the updates, where they were asked for
    aggregator: Aggregator | None = None  # takes the place of a mean of the models
    start: Ref | None = None  # what the clients trained from; given with the aggregator

    @property
    def theta(self) -> Tensor | None:
        """The trained models (n, P), fetched if they are stored elsewhere; None if none were sent."""
        return self.sent if self.sent is None or isinstance(self.sent, Tensor) else self.sent.gathered()

    @property
    def models(self) -> Tensor:
        """The trained models (n, P)."""
        theta = self.theta
        if theta is None:
            raise CoterieError("this Fit had send=False, its models stay with the clients", code="reply-not-asked")
        return theta

    @property
    def sketches(self) -> Tensor:
        """The sketches (n, size) that were asked for."""
        if self.sketch is None:
            raise CoterieError("this Fit asked for no sketch; write Fit(sketch=256)", code="reply-not-asked")
        return self.sketch

    @property
    def chosen(self) -> Tensor:
        """The rows the clients started from (n,)."""
        if not len(self.ids):
            return self.ids
        if self.choice is None:
            raise CoterieError(
                "this Fit started from neither Pick nor Best, there was nothing to choose", code="reply-not-asked"
            )
        return self.choice


@explained
@dataclass(frozen=True, eq=False)
class Scored:
    """Answers to a `Score`."""

    ids: Tensor
    n: Tensor
    scores: Tensor  # (n, K)


@explained
@dataclass(frozen=True, eq=False)
class Evaluated:
    """Answers to an `Evaluate`; accuracy and macro-F1 are NaN for regression, whose loss is the mean squared error.

    mae, constant, variance (and rmse, r2, which follow) are of regressions only; see `metrics.Errors`.
    """

    ids: Tensor
    n: Tensor  # samples of the evaluated split
    loss: Tensor
    accuracy: Tensor
    macro_f1: Tensor
    choice: Tensor | None = None  # (n,) the cluster a client used, or the one it has the largest share in
    shares: Tensor | None = None  # (n, K) of soft methods: how much of each cluster a client is
    mae: Tensor | None = None
    constant: Tensor | None = None  # the squared error of saying the mean of the client's training targets
    variance: Tensor | None = None  # of its targets ...
    level: Tensor | None = None  # (n, targets) ... and their mean
    scores: Mapping[str, Tensor] | None = None  # (n,) each: those of an objective of one's own, by name

    @property
    def rmse(self) -> Tensor | None:
        """The root of the mean squared error, in the units of the targets."""
        return None if self.mae is None else self.loss.sqrt()

    @property
    def r2(self) -> Tensor | None:
        """1 - mean squared error / variance of the client's test targets; NaN where these do not vary."""
        if self.variance is None:
            return None
        return torch.where(self.variance > 0, 1 - self.loss / self.variance, torch.nan)

    def __repr__(self) -> str:
        return f"<{len(self.ids)} clients evaluated: .ids, .n, .loss, .accuracy, .macro_f1, .choice, .shares>"


@explained
@dataclass(frozen=True, eq=False)
class Described:
    """Answers to a `Describe`."""

    ids: Tensor
    n: Tensor
    rows: Tensor  # (n, length)


Reply: TypeAlias = Fitted | Scored | Evaluated | Described
