"""Newcomers' data in the form of the data that a run was trained on: its columns, its scale, its classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.settings import Kind
from coterie.core.tables import Clients, NamesData
from coterie.data.cells import column_names, columns
from coterie.data.columns import TableScale
from coterie.data.federation import Domain, Federation
from coterie.data.scale import Scale
from coterie.training.data_record import DataRecord, targets_of

SHOWN = 12  # names in an error, where there are more


def as_federation(given: Federation | Sequence[tuple[Any, ...]], trained: Clients) -> Federation:
    """Newcomers as a federation; of tables those columns that the model was trained on."""
    if isinstance(given, Federation) or not isinstance(trained, NamesData):
        return given if isinstance(given, Federation) else _as_given(given)
    if isinstance(given, Sequence) and all(isinstance(c, tuple | list) for c in given):
        given = [
            tuple(
                _stored(part, trained, f"newcomers: client {client}") if place % 2 == 0 else part
                for place, part in enumerate(arrays)
            )
            for client, arrays in enumerate(given)
        ]
    kind = trained.kind if isinstance(trained, Federation | DataRecord) else None
    made = _as_given(given, kind)
    if made.class_names is not None and trained.class_names is None:
        theirs = ", ".join(made.class_names[:SHOWN])
        raise CoterieError(
            f"newcomers: their labels are names ({theirs}), it was trained on numbers; give those", code="data-labels"
        )
    table = _table_scale(trained)
    return made if table is None else replace(made, domains=tuple(replace(d, scale=table) for d in made.domains))


def _as_given(clients: Sequence[tuple[Any, ...]], task: Kind | None = None) -> Federation:
    """Clients' arrays as they are: their scale is that of the run, not one of their own."""
    if isinstance(clients, Sequence) and all(isinstance(client, tuple | list) for client in clients):
        return Federation.from_arrays(clients, task=task, standardise=False, standardise_y=False)
    return Federation.of(clients)  # which says what is wrong


def _stored(part: Any, trained: NamesData, where: str) -> Any:
    """The inputs of a newcomer as the training data is stored."""
    scale = _table_scale(trained)
    if scale is not None:
        return scale.stored(part, where)
    if trained.features is None or column_names(part) is None:
        return part
    return columns(part, trained.features, where)


def _table_scale(trained: NamesData) -> TableScale | None:
    """How the columns of the training data become inputs, where it has holes or categories."""
    if not isinstance(trained, Federation | DataRecord):
        return None
    scale, *others = trained.scales
    return scale if isinstance(scale, TableScale) and not others else None


def seen_alike(newcomers: Federation, trained: Clients) -> Federation:
    """Newcomers as the training data was seen: its scale, not a mean of their own; its numbers for named classes."""
    if not isinstance(trained, NamesData):
        return newcomers
    table = _table_scale(trained)
    newcomers = _same_columns(newcomers, trained.features) if table is None else _encoded_alike(newcomers, table)
    domains = newcomers.domains
    if isinstance(trained, Federation | DataRecord):  # over a network clients scale their data themselves
        if newcomers.kind != trained.kind:
            raise CoterieError(
                f"newcomers: theirs is a {newcomers.kind}, it was trained on a {trained.kind}", code="data-labels"
            )
        scale, *others = trained.scales
        own = newcomers.preparation is not None and newcomers.preparation.inputs  # measured on them alone
        if scale is not None and (own or not scale.plain) and not others:
            domains = tuple(replace(domain, scale=scale) for domain in domains)
        newcomers = replace(newcomers, preparation=None)
        target, *other_targets = targets_of(trained)
        if not other_targets:
            domains = tuple(replace(domain, target=target) for domain in domains)
    names, known = newcomers.class_names, trained.class_names
    if names is None or known is None or names == known:
        return replace(newcomers, domains=domains)
    if unknown := [name for name in names if name not in known]:
        raise CoterieError(
            f"newcomers: it was trained on the classes {', '.join(known)}, not on {unknown[0]}", code="data-labels"
        )
    numbers = torch.tensor([known.index(name) for name in names])
    domains = tuple(replace(d, relabel=numbers if d.relabel is None else numbers[d.relabel]) for d in domains)
    return replace(newcomers, domains=domains, class_names=known, outputs=len(known))


def _encoded_alike(newcomers: Federation, scale: TableScale) -> Federation:
    """A table read on its own, with the columns and the categories of the training data."""
    if gone := [name for name in scale.names if name in newcomers.left_out]:
        key = "text" if gone[0] in scale.texts else "categories"
        raise CoterieError(
            f"newcomers: column '{gone[0]}' was left out when their table was read; read it with "
            f"{key}=({', '.join(map(repr, gone))},), or give DataFrames: result.admit([(frame, y)])",
            code="data-column-unknown",
        )

    def recoded(domain: Domain) -> Domain:
        own = domain.scale
        if own is scale:  # stored so by `as_federation`
            return domain
        names = own.names if isinstance(own, TableScale) else newcomers.features or scale.names
        return replace(domain, x=scale.recoded(domain.x, own, names, "newcomers"))

    return replace(newcomers, domains=tuple(map(recoded, newcomers.domains)), features=scale.inputs)


def _same_columns(newcomers: Federation, wanted: tuple[str, ...] | None) -> Federation:
    """Newcomers with the columns that the model was trained on, in their order."""
    newcomers = _plain_inputs(newcomers, wanted)
    names = newcomers.features
    if names is None or wanted is None or names == wanted:
        return newcomers if wanted is None else replace(newcomers, features=wanted)
    if missing := [name for name in wanted if name not in names]:
        theirs, known = ", ".join(names), ", ".join(wanted)
        raise CoterieError(
            f"newcomers: they have no column '{missing[0]}': theirs are {theirs}; it was trained on {known}",
            code="data-column-unknown",
        )
    order = torch.tensor([names.index(name) for name in wanted])

    def ordered(domain: Domain) -> Domain:
        scale = domain.scale
        if scale is not None:
            mean, std = (v[order] if isinstance(v, Tensor) and v.ndim else v for v in (scale.mean, scale.std))
            scale = replace(scale, mean=mean, std=std)
        return replace(domain, x=domain.x[:, order], scale=scale)

    return replace(newcomers, domains=tuple(map(ordered, newcomers.domains)), features=wanted)


def _plain_inputs(newcomers: Federation, wanted: tuple[str, ...] | None) -> Federation:
    """A table with holes or categories, where the training data has none: its wanted columns must be all numbers.

    Over a network, where inputs have names such as region=north, its inputs are those."""
    domain = newcomers.domains[0]
    scale = domain.scale
    if not isinstance(scale, TableScale):
        return newcomers
    if wanted is not None and any(name not in scale.names for name in wanted):
        plain = tuple(replace(d, x=scale(d.x), scale=Scale()) for d in newcomers.domains)
        return replace(newcomers, domains=plain)
    for column in scale.columns:
        if column.values is not None and (wanted is None or column.name in wanted):
            raise CoterieError(
                f"newcomers: column '{column.name}' has text ({', '.join(column.values[:SHOWN])}); it was trained on "
                "numbers",
                code="data-column-invalid",
            )
    plain = tuple(replace(d, scale=Scale()) for d in newcomers.domains)
    return replace(newcomers, domains=plain, features=scale.names)
