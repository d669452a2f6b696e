"""All tables, cheapest first."""

from __future__ import annotations

from coterie.core.errors import CoterieError, suggest
from papers.cell import Table
from papers.tables import (
    attacks,
    cam,
    cam_order,
    collapse,
    drift,
    fedgroup,
    fedgroup_studies,
    fedsoft,
    har,
    letters,
    privacy,
    quick,
    recovery,
    stocfl,
    stocfl_clusters,
    stocfl_shifted,
    suite,
    wecfl,
    wecfl_tsne,
)

TABLES: tuple[Table, ...] = (
    *fedsoft.TABLES,
    *letters.TABLES,
    *fedgroup.TABLES,
    *fedgroup_studies.TABLES,
    *stocfl_clusters.TABLES,
    *stocfl.TABLES,
    *stocfl_shifted.TABLES,
    *wecfl.TABLES,
    *wecfl_tsne.TABLES,
    *cam_order.TABLES,
    *cam.TABLES,
    *har.TABLES,
    *collapse.TABLES,
    *quick.TABLES,
    *recovery.TABLES,
    *drift.TABLES,
    *suite.TABLES,
    *privacy.TABLES,
    *attacks.TABLES,
)


def table(name: str) -> Table:
    """The table of this name."""
    for found in TABLES:
        if found.name == name:
            return found
    raise CoterieError(f"no table '{name}'.{suggest(name, [t.name for t in TABLES])}", code="reproduce-unknown")
