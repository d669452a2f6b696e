"""References: which vector a client should use. Frozen dataclasses, no computation.

A task carries references instead of vectors, because the vector may depend on the client: `Pick` names a row per
client, `Best` lets the client choose, `Own` is what the client keeps. Whatever needs to know what a task contains uses
`walk` and `substitute`; only `client.resolve` turns references into vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeAlias, TypeVar

import torch
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.local import Local
from coterie.core.parts import Section
from coterie.core.settings import explained
from coterie.core.tables import ByClient


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
