"""Small separated federations, and what the conformance tests say to engines and methods."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from coterie.core.codec import pack
from coterie.core.compute import HOST, Compute, one_thread
from coterie.core.local import Local
from coterie.core.model import Model, loss_of
from coterie.core.registry import METHODS, NO_CODE
from coterie.core.seeds import Purpose, generator
from coterie.core.tables import Cohort
from coterie.data.federation import Federation, Samples, Split
from coterie.engines.choose import make_engine
from coterie.engines.contract import Engine
from coterie.methods.contract import Method
from coterie.methods.fesem import FeSEM
from coterie.training.ask import RoundAsk
from coterie.training.config import EngineConfig

# Every engine there is, by the names a configuration takes; those with processes at one and at two.
Kind = tuple[str, int | None]
REFERENCE: Kind = ("sequential", None)
ENGINES: list[Kind] = [
    (name, workers)
    for name in get_args(EngineConfig.model_fields["name"].annotation)
    if name not in ("auto", "ray")  # one of the others; a cluster of its own (tests/distributed)
    for workers in ((None,) if name == "sequential" else (1, 2))
]
PARALLEL = [kind for kind in ENGINES if kind[1] is not None]
PROCESSES = [kind for kind in PARALLEL if kind != ("batched", 1)]  # which is this process itself
EITHER = [REFERENCE, ENGINES[-1]]  # where one of a kind is enough
# Methods that together ask all that methods ask; where a test takes long, `make test` takes these only.
HANDFUL = (
    "fedavg",
    "halves",
    "ditto",
    "ifca",
    "wecfl",
    "flux",
    "fedrc",
    "fedsoft",
    "ifca-cam",
    "fedrep",
    "personal",
    "ifca-personal",
)

SIZES = (9, 24, 12, 31, 17, 8, 26, 15, 11, 20)  # training samples of clients 0..9
DESCRIBED = ("pacfl", "fielding", "flux")  # the two kinds differ in P(y|x) alone, which no description shows
TRUTH = tuple(i % 2 for i in range(len(SIZES)))
GROUPS = tuple(None if i == 7 else "ab"[side] for i, side in enumerate(TRUTH))  # what a user knows: not of all
LOCAL = Local(steps=6, batch=4, lr=0.1)


def arrays(task: Literal["classification", "regression"] = "classification") -> list[tuple[Tensor, ...]]:
    """Per client: the sign of the first input decides, and odd clients hold the opposite of what even ones hold."""
    out: list[tuple[Tensor, ...]] = []
    for client, n in enumerate(SIZES):
        rng = np.random.default_rng(100 + client)
        x = torch.from_numpy(rng.normal(size=(n + 6, 4))).float()
        side = x[:, 0] * (1 if TRUTH[client] else -1)
        y = (side > 0).long() if task == "classification" else (3 * side).float()[:, None]
        out.append((x[:n], y[:n], x[n:], y[n:]))
    return out


def toy(task: Literal["classification", "regression"] = "classification") -> Federation:
    """Ten clients of unequal size in two clusters that no single linear model can serve."""
    return Federation.from_arrays(arrays(task), truth=TRUTH, groups=GROUPS, standardise=False, standardise_y=False)


Fault = Callable[[int, str, Samples], Samples]


@dataclass(frozen=True, eq=False)
class Faulty(Federation):
    """A federation some of whose clients have trouble with their data."""

    fault: Fault | None = None

    def samples(self, client: int, split: Split) -> Samples:
        """What the client should have, after what happens to it."""
        taken = super().samples(client, split)
        return taken if self.fault is None else self.fault(client, split, taken)


def faulty(fault: Fault, healthy: Federation | None = None) -> Faulty:
    """The toy federation with a fault."""
    healthy = toy() if healthy is None else healthy
    return Faulty(**{f.name: getattr(healthy, f.name) for f in dataclasses.fields(Federation)}, fault=fault)


def linear() -> nn.Module:
    """The plainest network."""
    return nn.Linear(4, 2)


def regressor() -> nn.Module:
    """Linear regression."""
    return nn.Linear(4, 1)


def batchnorm() -> nn.Module:
    """Running statistics travel with the weights."""
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))


def dropout() -> nn.Module:
    """Draws random numbers while it trains."""
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2))


def method(name: str, local: Local = LOCAL, k: int = 2) -> Method[Any]:
    """A method of the catalogue, with this local training and this many clusters where it has either, that has warmed
    up (where it does) after one round."""
    fields = {f.name: f for f in dataclasses.fields(METHODS.find(name, NO_CODE))}
    # Subspaces of rank 3 in four dimensions all meet: their smallest angles would be rounding.
    options = {"local": local, "k": k, "warmup": 1, "rank": 1}
    params: dict[str, Any] = {n: v for n, v in options.items() if n in fields}
    if "base" in fields:  # a wrapper of another method
        inner = fields["base"].default
        # None: any method may be wrapped.
        named = [n for n in METHODS.places if METHODS.find(n, NO_CODE) is type(inner)]
        params["base"] = method(named[0] if named else "wecfl", local, k)
        if "section" in fields:
            params["section"] = ("*bias",)  # a part of every toy: the head of a single layer is all of it
    if issubclass(METHODS.find(name, NO_CODE), FeSEM):
        params["alpha"] = 0  # the first clustering asks nobody but the round's cohort
    made: Method[Any] = METHODS.build(name, params, NO_CODE)
    return made


@contextmanager
def engine(
    kind: Kind, federation: Federation, build: Callable[[], nn.Module] = linear, compute: Compute = HOST
) -> Iterator[Engine]:
    """An open engine of this kind."""
    (name, workers), model = kind, Model(build, loss_of(federation))
    with one_thread(), make_engine(name, model, federation, workers, compute=compute) as opened:
        yield opened


def fresh(a_method: Method[Any], federation: Federation, build: Callable[[], nn.Module] = linear, seed: int = 0) -> Any:
    """The method's state before the first round, as the driver makes it."""
    return a_method.init(Model(build, loss_of(federation)), federation.roster, generator(seed, Purpose.INIT))


def one_round(a_method: Method[Any], state: Any, opened: Engine, federation: Federation, ids: Sequence[int]) -> Any:
    """The method's first round with these clients."""
    these = torch.tensor(ids)
    cohort = Cohort(these, 0, federation.roster, generator(0, Purpose.METHOD, 0, 0))
    return a_method.round(state, cohort, RoundAsk(opened, these, 0, 0))


def assert_same(one: object, other: object, *, within: float | None = None) -> None:
    """Two trees of tensors are equal bit for bit or, with `within`, to that much."""
    (outline, tensors), (other_outline, other_tensors) = pack(one), pack(other)
    if within is None:
        assert outline == other_outline
    assert len(tensors) == len(other_tensors)
    for a, b in zip(tensors, other_tensors, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        if within is None:
            assert a.detach().numpy().tobytes() == b.detach().numpy().tobytes()
        else:
            torch.testing.assert_close(a, b, rtol=within, atol=within, equal_nan=True)
