"""What a watch found, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from coterie.core.text import client_name
from coterie.serving.watch import CHANCE, FEWEST, Drift, WatchedClient, WatchedCluster

SHOWN = 12  # clients in a list


def words(found: Drift) -> Iterator[str]:
    """What `print` shows."""
    yield from _verdict(found)
    yield from (_of_cluster(one) for one in found.clusters if one.drifts)
    drifting = [one for one in found.clients if one.drifts]
    yield from (_of_client(one) for one in drifting[:SHOWN])
    if len(drifting) > SHOWN:
        yield f"And {len(drifting) - SHOWN} more clients."
    yield from _suspicious(found)
    rate = f"{found.alpha:.0%}" if found.alpha >= 0.01 else f"{found.alpha:g}"
    yield f"Where nothing has changed, a watch calls drift in {rate} of cases (Holm over all clients and clusters)."
    yield from _what_was_old(found)
    if found.unknown:
        some = ", ".join(f"{who} (cluster {c if c >= 0 else 'of its own'})" for who, c in found.unknown[:SHOWN])
        yield f"{len(found.unknown)} clients are not of this run; the method would place them: {some}."
    if found.silent:
        yield f"{found.silent} clients of the run have no new samples."


def suspicions(clients: Sequence[WatchedClient]) -> str:
    """Clients that may have changed, the most suspicious first, and why."""
    ordered = sorted((one for one in clients if one.suspicious), key=lambda one: (one.p, one.client))
    more = f" and {len(ordered) - SHOWN} more" if len(ordered) > SHOWN else ""
    return ", ".join(map(_suspicion, ordered[:SHOWN])) + more


def _verdict(found: Drift) -> Iterator[str]:
    tested = [one for one in found.clients if one.samples >= FEWEST]
    if not tested:
        yield f"Nothing could be tested: no client of the run has {FEWEST} new samples or more."
    elif not found.drifts and not any(one.suspicious for one in tested):
        yield f"No drift is shown: the clustering still fits the {len(tested)} clients with new samples enough to tell."
    elif not found.drifts:
        yield f"No drift is shown, of {len(tested)} clients with new samples enough to tell."


def _suspicious(found: Drift) -> Iterator[str]:
    tested = [one for one in found.clients if one.samples >= FEWEST]
    many = sum(one.suspicious for one in tested)
    if many:
        yield (
            f"Suspicious{' besides' if found.drifts else ''}: {suspicions(tested)}. Of {len(tested)} clients, {many} "
            f"{'has' if many == 1 else 'have'} p below {CHANCE:.0%}; chance alone gives {CHANCE * len(tested):.2g} or "
            "fewer on average. More new samples would tell."
        )


def _of_cluster(one: WatchedCluster) -> str:
    losses = "" if one.loss_now is None else f", mean loss {one.loss_before:.3g} then, {one.loss_now:.3g} now"
    return f"Cluster {one.cluster} drifts: {one.doubtful} of {one.clients} clients changed{losses} (p = {one.p:.2g})."


def _of_client(one: WatchedClient) -> str:
    who = client_name(None, one.client) if one.name is None else client_name([one.name], 0)
    before = "" if one.loss_before is None else f"{one.loss_before:.3g} then, "
    where = f", now placed in cluster {one.placed}" if _elsewhere(one) else ""
    return (
        f"{who[0].upper()}{who[1:]} of cluster {one.cluster} drifts{where}: loss {before}{one.loss_now:.3g} now "
        f"(p = {one.p:.2g})."
    )


def _suspicion(one: WatchedClient) -> str:
    who = client_name(None, one.client) if one.name is None else one.name
    before = "" if one.loss_before is None else f"{one.loss_before:.3g} to "
    better = f", cluster {one.placed} fits better" if _elsewhere(one) else ""
    return f"{who} of cluster {one.cluster} (loss {before}{one.loss_now:.3g}{better}, p = {one.p:.2g})"


def _elsewhere(one: WatchedClient) -> bool:
    return one.placed not in (-1, one.cluster)


def _what_was_old(found: Drift) -> Iterator[str]:
    if found.left_out:
        yield f"{found.left_out:,} rows were left out: the run had them, or later ones, already."
    if found.unclear:
        yield (
            f"Caution: {found.unclear:,} rows are equal to rows that the run was trained or tested on. Its rows repeat "
            "themselves, so these may be others; if they are the same, give the new rows only."
        )
    if not found.reference:
        yield "The run's own data cannot be read here: rows that it had already would not be noticed."
