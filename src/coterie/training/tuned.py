"""A network and what of it is trained, wherever a model is given in Python; a configuration says it under `model`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError
from torch import nn

from coterie.core.errors import CoterieError
from coterie.core.model import Model
from coterie.core.objective import LossFunction, Objective, as_loss
from coterie.core.parts import Adapters, Train, as_train
from coterie.core.registry import ANY_CODE, LOSSES, Consent
from coterie.core.settings import explain, explained
from coterie.zoo import Architecture

KEYS = ("train", "adapters", "loss")  # of a model in a configuration: every network has them


@explained
@dataclass(frozen=True)
class Tuned:
    """A network of which a part is trained: `Tuned("mlp", train="head")`.

    network: as for `coterie.run`: a name, an architecture of the zoo, a function that builds a network, an instance.
    train: head, classifier, adapters, all, or names of parameters or modules: ("encoder.layer.5", "*.bias").
    adapters: their layers and size, for train="adapters".
    loss: a name (cross_entropy, mse, mae, multilabel, tokens), a function (outputs, y) -> losses (n,), or an object
        with `losses` and `scores`; without one, cross_entropy for classes and mse for targets.
    """

    network: str | Model | Architecture | nn.Module | Callable[[], nn.Module]
    train: Train = "all"
    adapters: Adapters = field(default_factory=Adapters)
    loss: str | Objective | LossFunction | None = None  # None: by the labels

    def __post_init__(self) -> None:
        object.__setattr__(self, "train", as_train(self.train))
        if not isinstance(self.adapters, Adapters):
            raise CoterieError(
                f"adapters: {self.adapters!r}: expected coterie.core.parts.Adapters(rank=..., layers=...)",
                code="config-invalid-value",
            )
        if self.adapters != Adapters() and self.train != "adapters":
            raise CoterieError(
                f"adapters: are for train: adapters, this is {self.train}; leave one of the two out",
                code="config-conflict",
            )

    def of(self, model: Model) -> Model:
        """The model with this part trained."""
        loss = model.loss if self.loss is None else as_loss(self.loss, ANY_CODE)
        if (self.train, loss) == ("all", model.loss):
            return model
        train = model.train if self.train == "all" else self.train
        return replace(model, train=train, adapters=self.adapters, loss=loss)


def separated(params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parameters of a network itself, and those that say what of it is trained."""
    own = {key: value for key, value in params.items() if key not in KEYS}
    return own, {key: value for key, value in params.items() if key in KEYS}


def tuned(network: Any, params: Mapping[str, Any], consent: Consent) -> Tuned:
    """From the keys of a configuration."""
    try:
        adapters = TypeAdapter(Adapters).validate_python(params.get("adapters", {}))
    except ValidationError as error:
        raise explain(error, "model.adapters", Adapters) from None
    return Tuned(network, as_train(params.get("train", "all")), adapters, _loss(params.get("loss"), consent))


def _loss(given: Any, consent: Consent) -> Any:
    """By name, or with parameters: {name: tokens, padding: 0}."""
    if given is None or isinstance(given, str):
        return as_loss(given, consent) if given and ":" in given else given
    if not isinstance(given, dict) or not isinstance(given.get("name"), str):
        raise CoterieError(
            f"model.loss: {given!r}: expected a name, or {{name: ..., its parameters}}", code="config-invalid-value"
        )
    own = {key: value for key, value in given.items() if key != "name"}
    if given["name"] in ("cross_entropy", "mse"):
        if own:
            raise CoterieError(f"model.loss: {given['name']} has no parameters", code="config-unknown-key")
        return str(given["name"])
    made = as_loss(LOSSES.build(given["name"], own, consent))
    assert not isinstance(made, str)
    return made


def spelled(params: Mapping[str, Any], consent: Consent) -> dict[str, Any]:
    """The keys of a configuration with every default written out; nothing where there are none."""
    if not params:
        return {}
    what = tuned("", params, consent)
    return recorded(what.train, what.adapters) | ({"loss": params["loss"]} if "loss" in params else {})


def recorded(train: Train, adapters: Adapters) -> dict[str, Any]:
    """As the keys of a configuration: nothing where all is trained."""
    if train == "all":
        return {}
    out: dict[str, Any] = {"train": train if isinstance(train, str) else list(train)}
    if train == "adapters":
        out["adapters"] = TypeAdapter(Adapters).dump_python(adapters, mode="json")
    return out
