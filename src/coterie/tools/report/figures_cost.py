"""What the rounds of one run cost: bytes, seconds, and clients that did not answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.tools.report.figures_curves import line
from coterie.tools.report.figures_style import Theme, area, bar_marker, blank, plain, thin
from coterie.tools.report.record import RunRecord
from coterie.tools.report.tables import Absence

REASONS = 6  # told apart in the figure
BARS = 150


@dataclass(frozen=True)
class Reason:
    """Why clients were missing, and how often."""

    reason: str
    times: int
    clients: int
    first_round: int
    first_client: int


def traffic(record: RunRecord, theme: Theme = "light") -> Any:
    """What every round would send to clients over a network, and get back."""
    curve = record.curve
    if not (np.nansum(curve.bytes_down) + np.nansum(curve.bytes_up)):
        return None
    most = max(np.nanmax(curve.bytes_down, initial=0), np.nanmax(curve.bytes_up, initial=0))
    unit, size = byte_unit(most)
    figure = blank(
        "Bytes per round",
        "round",
        f"sent ({unit})",
        f"In all {in_bytes(float(np.nansum(curve.bytes_down)))} to the clients and "
        f"{in_bytes(float(np.nansum(curve.bytes_up)))} back.",
        theme,
    )
    for place, (column, name) in enumerate((("bytes_down", "to clients"), ("bytes_up", "from clients"))):
        line(figure, curve, column, name, place, scale=1 / size)
    figure.update_yaxes(rangemode="tozero", hoverformat=".3g")
    figure.update_layout(hovermode="x unified")
    return figure


def seconds(record: RunRecord, theme: Theme = "light") -> Any:
    """What every round took, at the clients and at the server, one upon the other."""
    curve = record.curve
    shown = np.flatnonzero(~np.isnan(curve.seconds))
    if not len(shown):
        return None
    client = np.nan_to_num(curve.client_seconds[shown])
    server = np.clip(curve.seconds[shown] - client, 0, None)
    figure = blank(
        "Seconds per round",
        "round",
        "time (s)",
        f"In all {client.sum():.1f} seconds of clients' work and {server.sum():.1f} of the server's.",
        theme,
    )
    some = thin(len(shown))
    for place, (values, name) in enumerate(((client, "clients' work"), (server, "server's work"))):
        area(figure, curve.round[shown][some], values[some], name, place)
    figure.update_layout(hovermode="x unified")
    figure.update_yaxes(hoverformat=".3g")
    return figure


def missing(record: RunRecord, theme: Theme = "light") -> Any:
    """Clients that did not answer, round by round and by reason. None where all did."""
    reasons = missing_reasons(record)
    if not reasons:
        return None
    curve = record.curve
    total, asked = sum(reason.times for reason in reasons), np.nansum(curve.asked)
    of_all = f" of {asked:,.0f} asked" if asked else ""
    often = f"{reasons[0].reason} ({reasons[0].times:,} times)"
    say = f"{total:,} answers{of_all} were missing; most often because: {often}."
    starts = np.arange(0, len(curve.round), -(-len(curve.round) // BARS))  # of bars: of a long run, several rounds each
    together = f", mean of {starts[1]} rounds" if len(starts) < len(curve.round) else ""
    figure = blank("Missing clients per round", "round", f"clients{together}", say, theme)
    told = [reason.reason for reason in reasons[:REASONS]]
    place_of = {number: place for place, number in enumerate(curve.round.tolist())}
    counts = np.zeros((len(told) + 1, len(curve.round)))
    for absence in curve.missing:
        row = told.index(absence.reason) if absence.reason in told else len(told)
        counts[row, place_of[absence.round]] += 1
    means = np.add.reduceat(counts, starts, axis=1) / np.diff([*starts, len(curve.round)])
    for row, name in enumerate([*(plain(reason, 50) for reason in told), "other reasons"]):
        if means[row].any():
            figure.add_bar(x=curve.round[starts], y=means[row], name=name, marker=bar_marker(row))
    figure.update_layout(barmode="stack", bargap=0.1, showlegend=True)
    return figure


def missing_reasons(record: RunRecord) -> list[Reason]:
    """Every reason with how often it was given, the most frequent first."""
    by_reason: dict[str, list[Absence]] = {}
    for absence in record.curve.missing:
        by_reason.setdefault(absence.reason, []).append(absence)
    found = [
        Reason(reason, len(mine), len({absence.client for absence in mine}), mine[0].round, mine[0].client)
        for reason, mine in by_reason.items()
    ]
    return sorted(found, key=lambda reason: -reason.times)


def byte_unit(most: float) -> tuple[str, int]:
    """A unit in which this is no long number."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if most >= size:
            return unit, size
    return "bytes", 1


def in_bytes(count: float) -> str:
    """104000 -> 104 kB"""
    unit, size = byte_unit(count)
    return f"{count / size:.3g} {unit}" if size > 1 else f"{count:.0f} bytes"
