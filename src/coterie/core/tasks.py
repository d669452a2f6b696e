"""What a server asks of clients, with which models, and what they answer: frozen dataclasses, no computation.

Tasks carry references instead of vectors, because the vector may depend on the client: `Pick` names a row per client,
`Best` lets the client choose, `Own` is what the client keeps. Whatever needs to know what a task contains uses `walk`
and `substitute`; only `client.visit` turns references into vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, TypeVar, get_args

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt, field_validator, model_validator
from torch import Tensor

from coterie.core.aggregation import Aggregator
from coterie.core.errors import CoterieError
from coterie.core.parts import Section
from coterie.core.settings import STRICT, ShareAboveZero, ShareBelowOne, explained
from coterie.core.settings import dataclass as validated
from coterie.core.tables import ByClient


@validated(frozen=True, config=STRICT)
class Local:
    """How a client trains: for how long, on which batches, with which optimiser.

    epochs: passes over the client's data (one, if neither is given); or steps: a number of batches.
    batch: samples per step, or "full". lr, momentum, weight_decay, optimizer ("sgd" or "adam"): as in torch.optim.
    lr may be "auto": a few clients try some rates before the first round (see `training.learning_rate`).
    lr_decay: the learning rate of round t, from 0, is lr * lr_decay**t. shuffle: whether batches are drawn anew.
    keep_optimizer: momentum (or Adam's moments) live on at the client from visit to visit.
    clip: the largest norm of a step's gradient, above which it is scaled down; "off" never clips. "auto" is 1 where
    targets are standardised (regression on a table), and off elsewhere.
    """

    epochs: PositiveInt | None = None  # passes over the client's data; 1 when steps is not given either
    steps: PositiveInt | None = None  # or a number of batches, going round the data as often as needed
    batch: PositiveInt | Literal["full"] = 32  # samples per step; "full" is gradient descent
    lr: PositiveFloat | Literal["auto"] = 0.1  # auto: found by a short search before the first round
    lr_decay: ShareAboveZero = 1.0  # learning rate of round t (from 0) is lr * lr_decay**t
    optimizer: Literal["sgd", "adam"] = "sgd"
    momentum: ShareBelowOne = 0.0
    weight_decay: NonNegativeFloat = 0.0
    keep_optimizer: bool = False  # momentum (or Adam's moments) live on at the client from visit to visit
    shuffle: bool = True
    clip: PositiveFloat | Literal["auto", "off"] = "auto"  # gradient norm; auto: 1 where targets are standardised

    @field_validator("clip", mode="before")
    @classmethod
    def _off(cls, value: object) -> object:
        if value is True:
            raise ValueError("the largest norm of a gradient, such as 1, or auto, or off")
        return "off" if value is False else value  # as YAML reads `off`

    @property
    def rate(self) -> float:
        """The learning rate, which must be a number by now."""
        if self.lr == "auto":
            raise CoterieError(
                "local.lr: auto is found when a run begins (coterie.run, coterie run); here write a number",
                code="argument-invalid",
            )
        return self.lr

    def __repr__(self) -> str:
        """As a dataclass, without what has its default and came later: checkpoints of before know it by this."""
        shown = (f.name for f in fields(self) if f.name != "clip" or self.clip != "auto")
        return f"Local({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    @model_validator(mode="after")
    def _consistent(self) -> Local:
        if self.epochs is not None and self.steps is not None:
            raise ValueError("give epochs or steps, not both")
        if self.optimizer == "adam" and self.momentum:
            raise ValueError("momentum belongs to sgd; adam has its own (leave momentum at 0)")
        return self


GRADIENT = Local(epochs=1, batch="full", lr=1.0, clip="off")  # one step of it moves a model by minus its gradient


class Node:
    """A part of a task that may contain references, and is found by `walk`."""

    __slots__ = ()


class Reference(Node):
    """Says which vector a client should use."""

    __slots__ = ()


@explained
@dataclass(frozen=True, eq=False)
class Personal(Node):
    """A section of the model that stays with each client. The server's vectors then hold the rest only, in its order.

    A client puts its own values (or the default, before it has any) where the section is. A `Fit` that starts so keeps
    what it trained of the section at the client, and sends the rest.
    With `tune`, a client without own values that predicts first trains them from the default, with the rest frozen; and
    so does every client that compares models (`Best`, `Score`), for each of them: own values fit the model that they
    were trained with, whatever the others are. Neither is kept, and no `Fit` starts from them.
    """

    section: Section
    own: Own  # its values (P_own,), and where the client keeps them
    tune: Local | None = None

    def __post_init__(self) -> None:
        check_references(self, "own", required=True)


@explained
@dataclass(frozen=True, eq=False)
class All(Reference):
    """The same vector for everyone."""

    theta: Tensor  # (P,)
    personal: Personal | None = None

    def __post_init__(self) -> None:
        check_tensor(self, "theta")


@explained
@dataclass(frozen=True, eq=False)
class Pick(Reference):
    """The row that the server chose for each client."""

    centers: Tensor  # (K, P)
    labels: ByClient  # int
    personal: Personal | None = None

    def __post_init__(self) -> None:
        check_tensor(self, "centers")
        check_table(self, "labels", ByClient)

    def row_of(self, client: int) -> int | None:
        """The client's row. None without a valid label: the client then cannot answer and is reported as missing."""
        label = self.labels.get(client)
        return int(label) if label is not None and 0 <= int(label) < len(self.centers) else None


@explained
@dataclass(frozen=True, eq=False)
class Row(Reference):
    """One vector, and which row of the server's it is: a `Pick` as one client is sent it over a network."""

    theta: Tensor  # (P,)
    row: int
    personal: Personal | None = None


@explained
@dataclass(frozen=True, eq=False)
class Best(Reference):
    """The row of least mean loss (or most correct answers) on the client's own training data; the lowest index
    wins a tie."""

    centers: Tensor  # (K, P)
    given: Ref | None = None  # logits of this model are added to each row's own while scoring
    by: Literal["loss", "accuracy"] = "loss"
    personal: Personal | None = None

    def __post_init__(self) -> None:
        check_tensor(self, "centers")
        check_references(self, "given")


@explained
@dataclass(frozen=True, eq=False)
class Estimated(Reference):
    """Mixture weights (K,) that the client estimates on its own training data.

    votes: the share of samples on which each center is the best. posterior: expectation-maximisation of the
    weights alone, from uniform ones, with the centers as they are.
    """

    centers: Tensor  # (K, P)
    rule: Literal["votes", "posterior"]
    steps: int = 10  # of expectation-maximisation
    class_shares: Tensor | None = None  # (K, classes), see `Posterior`; for posterior only

    def __post_init__(self) -> None:
        check_tensor(self, "centers")
        check_class_shares(self)


@explained
@dataclass(frozen=True, eq=False)
class Mix(Reference):
    """A combination of the rows, with weights per client: the server's, or the client's own estimate."""

    centers: Tensor  # (K, P)
    weights: ByClient | Estimated  # (n, K)

    def __post_init__(self) -> None:
        check_tensor(self, "centers")
        check_table(self, "weights", ByClient, Estimated)


@explained
@dataclass(frozen=True, eq=False)
class Own(Reference):
    """What the client itself keeps under this name, or the default on its first visit."""

    slot: str
    default: Ref

    def __post_init__(self) -> None:
        check_references(self, "default", required=True)


Ref: TypeAlias = All | Pick | Row | Best | Mix | Own | Estimated
OneRow: TypeAlias = Pick | Row | Best  # each is one row of the server's centers, and a reply says which


@explained
@dataclass(frozen=True, eq=False)
class Posterior(Node):
    """Weights per sample, computed at the client: p(component | sample) under the prior (FedEM's E-step).

    With class shares, p_k(y) for each component, the likelihood is exp(-loss) / p_k(y) instead (FedRC's E-step).
    """

    centers: Tensor  # (K, P)
    component: int
    prior: Ref  # a (K,) vector
    class_shares: Tensor | None = None  # (K, classes), above 0

    def __post_init__(self) -> None:
        check_tensor(self, "centers")
        check_class_shares(self)
        check_references(self, "prior", required=True)


# ------------------------------------------------------------------------------------------------- walker


def children(node: Any) -> tuple[Node, ...]:
    """The references directly inside a task or reference, in the order of its fields."""
    found: list[Node] = []
    for field in fields(node):
        value = getattr(node, field.name)
        if isinstance(value, Node):
            found.append(value)
        elif isinstance(value, tuple):
            found += [one for one in value if isinstance(one, Node)]
    return tuple(found)


def walk(node: object, kept: Container[str] = ()) -> Iterator[object]:
    """A task or reference and everything inside it, parents first.

    kept: the names under which a client keeps values. The default of an `Own` among them is not needed, and left out.
    """
    yield node
    if not (isinstance(node, Own) and node.slot in kept):
        for child in children(node):
            yield from walk(child, kept)


T = TypeVar("T")


def substitute(node: T, swap: Callable[[Any], Any]) -> T:
    """The same task or reference with `swap(child)` in place of each child; itself if that changes nothing."""
    new: dict[str, Any] = {}
    for field in fields(node):  # type: ignore[arg-type]
        value = getattr(node, field.name)
        if isinstance(value, Node):
            new[field.name] = swap(value)
        elif isinstance(value, tuple):
            new[field.name] = tuple(swap(one) if isinstance(one, Node) else one for one in value)
    same = all(_same(value, getattr(node, name)) for name, value in new.items())
    return node if same else replace(node, **new)  # type: ignore[type-var]


def _same(new: object, old: object) -> bool:
    if isinstance(new, tuple) and isinstance(old, tuple):
        return all(a is b for a, b in zip(new, old, strict=True))
    return new is old


def vectors_of(ref: object) -> Tensor | None:
    """The vectors (K, P) that a reference or task carries itself; None if it carries none (`Own`, `Fit`, ...)."""
    if isinstance(ref, All | Row):
        return ref.theta[None]
    found = getattr(ref, "centers", None)
    return found if isinstance(found, Tensor) else None


def personal_of(ref: object) -> Personal | None:
    """What stays with the clients of the model that a reference means."""
    return ref.personal if isinstance(ref, All | OneRow) else None


def rows_of(ref: Ref, ids: Tensor, choice: Tensor | None = None) -> tuple[Tensor, Tensor] | None:
    """The models (K, P) of the server's that clients use, and which of them each (n,); None where it does not know.

    choice: the rows that the clients chose themselves, if they reported it (`Best`).
    """
    match ref:
        case All(theta) | Row(theta):
            return theta[None], torch.zeros_like(ids)
        case Pick(centers, labels) if bool(labels.has(ids).all()):
            return centers, labels.at(ids)
        case Best(centers) if choice is not None:
            return centers, choice
    return None


def start_known(start: Ref) -> bool:
    """Whether the server knows the model that a client started from."""
    return isinstance(start, All | OneRow) or (isinstance(start, Mix) and isinstance(start.weights, ByClient))


def starts_of(start: Ref, ids: Tensor, choice: Tensor | None) -> Tensor | None:
    """What these clients started from: (n, P), (1, P) if all from the same; None where the server does not know."""
    if isinstance(start, Mix):
        weights = start.weights
        return weights.at(ids).to(start.centers.dtype) @ start.centers if isinstance(weights, ByClient) else None
    found = rows_of(start, ids, choice)
    if found is None:
        return None
    centers, rows = found
    return centers if len(centers) == 1 else centers[rows]


def length_of(ref: Ref) -> int:
    """The length of the vector that a reference means."""
    if isinstance(ref, Own):
        return length_of(ref.default)
    if isinstance(ref, Estimated):
        return len(ref.centers)
    return ref.theta.numel() if isinstance(ref, All | Row) else ref.centers.shape[1]


# ------------------------------------------------------------------------------------------------- checks


def check_table(where: object, name: str, *kinds: type) -> None:
    """A value per client is a table by id: a list or a tensor would be read by position."""
    value = getattr(where, name)
    if not isinstance(value, kinds):
        wanted = " or ".join(f"{kind.__name__}(...)" for kind in kinds)
        raise CoterieError(
            f"{type(where).__name__}.{name}: expected {wanted}, got {describe_value(value)}; "
            "write ByClient(ids, values)",
            code="task-invalid",
        )


def check_tensor(task: object, name: str) -> None:
    """Whether a field is a tensor."""
    value = getattr(task, name)
    if not isinstance(value, Tensor):
        raise CoterieError(
            f"{type(task).__name__}.{name}: expected a tensor, got {describe_value(value)}", code="task-invalid"
        )


def check_class_shares(task: Any) -> None:
    """Whether the shares of the classes, where there are any, are a table with a row of positive numbers per center."""
    shares, many = task.class_shares, len(task.centers)
    if shares is None:
        return
    good = isinstance(shares, Tensor) and shares.ndim == 2 and len(shares) == many and shares.is_floating_point()
    if not good or not bool(((shares > 0) & shares.isfinite()).all()):
        raise CoterieError(
            f"{type(task).__name__}.class_shares: expected a table of positive numbers, a row for each of the {many} "
            f"centers and a column per class, got {describe_value(shares)}",
            code="task-invalid",
        )


def check_references(task: object, *names: str, required: bool = False) -> None:
    """Whether fields are references, or None where they may be: a bare vector does not say whose it is."""
    for name in names:
        value = getattr(task, name)
        if isinstance(value, Reference) or (value is None and not required):
            continue
        hint = "All(w) for one vector, Pick(centers, labels) for a row per client"
        if name == "start":
            hint = "Fit(All(w), ...) for one model, Fit(Pick(centers, labels), ...) for a row per client"
        raise CoterieError(
            f"{type(task).__name__}.{name}: expected a reference, got {describe_value(value)}; write {hint}",
            code="task-invalid",
        )


def check_models(models: object) -> None:
    """Whether these are the models of an `Evaluate`."""
    if not isinstance(models, tuple | list) or not all(isinstance(one, Reference) for one in models):
        hint = f"write Evaluate((All(w),)) for one model, got {describe_value(models)}"
        raise CoterieError(f"Evaluate.models: expected a tuple of references; {hint}", code="task-invalid")


def describe_value(value: object) -> str:
    """A value as error messages name it."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if value is None or isinstance(value, Reference):
        return "None" if value is None else f"{type(value).__name__}(...)"
    return f"a {type(value).__name__}"


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
