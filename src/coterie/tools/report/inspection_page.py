"""An inspection as one HTML file: the answer, the figures, and a table of the clients."""

from __future__ import annotations

import math
from collections.abc import Sequence

from coterie.insight.inspect import Inspection, Place, answer, compared
from coterie.tools.report.figures import Picture
from coterie.tools.report.figures_inspection import certainty, dendrogram, risk_curve
from coterie.tools.report.page import Part, document
from coterie.tools.report.page_parts import Column, table, text

CLIENTS = 500  # in the table, the least certain first


def render(found: Inspection, commands: Sequence[str]) -> str:
    """The page."""
    head, *rest = answer(found)
    header = f"<h1>{text(head)}</h1>" + "".join(f"<p>{text(line)}</p>" for line in rest)
    shown = [
        f"<pre><code>{text(line)}</code></pre><p class='soft'>{text(advice.reason)}</p>"
        for line, advice in zip(commands, found.advice, strict=True)
    ]
    pictures = (
        Picture("dendrogram", "Clusters", dendrogram(found)),
        Picture("risk", "Clusters", risk_curve(found)),
        Picture("certainty", "Clusters", certainty(found)),
    )
    parts = [Part("What follows", "".join(shown)), Part("Clusters", "", pictures)]
    lines = "".join(f"<p>{text(line)}</p>" for line in compared(found))
    if lines:
        parts.append(Part("What distinguishes the clusters", lines))
    parts.append(Part("Clients", _clients(found)))
    return document("Inspection", header, parts)


def _clients(found: Inspection) -> str:
    columns = [Column("client"), Column("cluster", True), Column("samples", True), Column("margin", True)]
    columns += [Column("next cluster", True), Column("")]
    order = sorted(found.places, key=lambda place: (math.inf if place.margin is None else place.margin, place.client))
    rows = [_row(place) for place in order[:CLIENTS]]
    more = f"; {len(order) - CLIENTS} clearer ones are left out" if len(order) > CLIENTS else ""
    return table(f"The least certain first; margins are in deviations of a client's noise{more}", columns, rows)


def _row(place: Place) -> list[str]:
    kinds = {"alone": place.alone, "doubtful": place.doubtful, "typical": place.typical}
    return [
        text(place.client if place.name is None else place.name, 120),
        str(place.cluster),
        f"{place.samples:,}",
        "-" if place.margin is None else f"{place.margin:.1f}",
        "-" if place.runner_up is None else str(place.runner_up),
        ", ".join(kind for kind, is_ in kinds.items() if is_),
    ]
