"""How a real federation is run: what a server is told beside the method and the model."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, InstanceOf, NonNegativeInt, PositiveFloat, PositiveInt, TypeAdapter, ValidationError

from coterie.core.errors import CoterieError
from coterie.core.local import Local
from coterie.core.registry import NO_CODE, Consent
from coterie.core.settings import STRICT, ShareAboveZero, explain
from coterie.core.settings import dataclass as validated
from coterie.layers.robust import HEAVIEST, Robust
from coterie.training.config import Named, Tree, change, checked, consent_to, named_values, read_file
from coterie.training.settings import Settings

SECURE = "secure_aggregation"  # asked for by name, it is refused with the reason: nobody should believe to have it
# Settings that only make sense where clients are simulated, or that real clients have no samples for yet.
OF_SIMULATIONS = ("data", "engine", "device", "precision", "compile", "deterministic")  # clients have their own
SIMULATED = ("dropout", "newcomers", "evaluate_whom", "validation", "stop_after", "attack")


# On unless the configuration says otherwise: what costs nothing where nobody is hostile (docs/robustness.md has the
# measurements). Quarantine and robust means cost a few points in some federations.
DEFENCE = Robust(name="norm-clip", clip=4.0, reject=10.0, smallest=1)
QUARANTINE = Robust(name="norm-clip", smallest=3)  # whose updates are reported where they are not quarantined


@validated(frozen=True, config=STRICT)
class Network:
    """How the server deals with real clients.

    clients: how many must be connected before a round begins.
    deadline: seconds a client has for a visit; who has not answered by then is missed.
    enough: the share of those asked after whose answers a visit ends (asking more than are needed: over-selection).
    compress: payloads, losslessly; worth it on slow links only. largest: bytes of a message, either way.
    samples: the most that a client may say it has; what it says is its weight in the mean.
    refusals: replies that were refused (malformed, or an update beyond `update_bound`) after which a client is banned
    for the rest of the run; 0: never.
    norm: the largest Euclidean norm of a model (all its numbers) that a client may send back; None: any finite one.
    connections: how many an address may have open at once; an idle one gives way to a new one.
    requests: how many a client may send in a second.
    outputs: classes (or targets), where the first clients do not show all of them.
    """

    clients: PositiveInt = 2
    deadline: PositiveFloat = 600.0
    enough: ShareAboveZero = 1.0
    compress: bool = False
    largest: PositiveInt = 1 << 30
    samples: PositiveInt = 1_000_000
    refusals: NonNegativeInt = 5
    norm: PositiveFloat | None = None
    connections: PositiveInt = 128
    requests: PositiveInt = 100
    outputs: PositiveInt | None = None
    patience: NonNegativeInt = 0  # seconds without enough clients after which the server gives up; 0: never


@validated(frozen=True, config=STRICT)
class ServerConfig(Settings):
    """Everything `coterie server` needs; the data is the clients'."""

    checkpoint_every: PositiveInt = 1
    model: Named = Named(name="linear")
    method: Named = Named(name="halves")
    local: Local = Local(epochs=5, batch=8, lr=0.1)
    network: Network = Network()
    consent: Annotated[InstanceOf[Consent], Field(exclude=True)] = NO_CODE  # to import what it names; no file has it

    @property
    def settings(self) -> Settings:
        """The settings of the round loop."""
        return Settings(**{f.name: getattr(self, f.name) for f in dataclasses.fields(Settings)})

    def dump(self) -> Tree:
        """As a YAML document, every default written out."""
        out: Tree = TypeAdapter(ServerConfig).dump_python(self, mode="json", exclude_none=True)
        return out


def read(
    file: Path | None,
    words: Sequence[str] = (),
    base: Mapping[str, Any] | None = None,
    consent: Consent = NO_CODE,
) -> ServerConfig:
    """The configuration of a file, changed by `key=value` words. A file for `coterie run` will do: its data and engine
    are those of a simulation, and left out. Where it says nothing of an aggregator, there is `DEFENCE`."""
    tree = copy.deepcopy(dict(base)) if base is not None else ServerConfig().dump()
    consent = consent_to(file, words, consent)
    if file is not None:
        given = named_values(read_file(file))
        _refuse_drift(given, words)
        tree |= {k: v for k, v in given.items() if k not in OF_SIMULATIONS}
    _refuse_drift({}, words)
    change(tree, words, consent)
    if base is None and "aggregator" not in tree and tree.get("privacy") is None:
        tree["aggregator"] = dataclasses.asdict(DEFENCE)
    _refuse_secure_aggregation(tree)
    try:
        config = TypeAdapter(ServerConfig).validate_python(checked(tree) | {"consent": consent})
    except ValidationError as error:
        raise explain(error, "", ServerConfig) from None
    usual = Settings()
    for key in SIMULATED:
        if getattr(config, key) != getattr(usual, key):
            raise CoterieError(
                f"{key}: is for simulations; with real clients leave it at {getattr(usual, key)}",
                code="config-conflict",
            )
    return config


def reports_isolated(settings: Settings) -> bool:
    """Whether updates that are far from all others are reported: they are not quarantined, and may be looked at."""
    return settings.privacy is None and settings.aggregator is not None and settings.aggregator.smallest == 1


def defence_line(config: ServerConfig) -> str:
    """What the server does about hostile clients, what it does not do, and why."""
    rule, start = config.aggregator, "hostile clients"
    if config.privacy is not None:
        return (
            f"{start}: nothing is on, because of privacy: comparing updates is not accounted for "
            "(each is clipped to privacy.clip)"
        )
    if rule is None:
        return f"{start}: nothing is on but update_bound={config.update_bound:g}, as configured (aggregator: null)"
    bounds = f"an update is scaled down to {rule.clip:g} times the median norm"
    bounds += f" and rejected beyond {rule.reject:g} times" if rule.reject else ""
    line = f"{start}: {bounds}, nobody weighs more than {HEAVIEST:g} times the median of its cluster"
    line += "" if rule.name == "norm-clip" else f", means are taken by {rule.name}"
    if rule.smallest > 1:
        return (
            f"{line}, and an update with fewer than {rule.smallest - 1} others near it is quarantined (as configured)"
        )
    if rule != DEFENCE:
        return f"{line} (as configured); an update far from all others is reported, not quarantined"
    return (
        f"{line}. Not on: quarantine, which would lose a true cluster of two clients (an update far from all others is "
        "reported), and a robust mean, which costs accuracy where clients differ; aggregator=centered-clipping has both"
    )


def _refuse_drift(tree: Mapping[str, Any], words: Sequence[str]) -> None:
    data = tree.get("data")
    if (isinstance(data, Mapping) and "drift" in data) or any(word.startswith("data.drift") for word in words):
        raise CoterieError(
            "data.drift: is for simulations; the data of real clients changes by itself. Leave it out",
            code="config-conflict",
        )


def _refuse_secure_aggregation(tree: Mapping[str, Any]) -> None:
    network = tree.get("network")
    if SECURE in tree or (isinstance(network, Mapping) and SECURE in network):
        raise CoterieError(
            f"{SECURE}: is not available, the server sees what each client sends. The implementations that could carry "
            "it make their masks with a generator that is not meant for secrets, and for two clients a server has "
            "computed an update from behind its mask (docs/secure-aggregation.md). Leave it out",
            code="config-unavailable",
        )
