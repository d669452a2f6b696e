"""An inspection in plain words, a line per statement."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

from coterie.training.contrast import Contrast, Difference
from coterie.training.inspection import CLEAR, FEWEST, Inspection, Place

NAMED = 8  # clients in a list
SHARE, DEVIATIONS = 0.1, 0.25  # differences of a label's share, and of a mean, that are called so
SURE = 0.9  # a share of resamples that is called clear


def answer(found: Inspection) -> list[str]:
    """The answer, what it rests on, what it is worth, and what follows."""
    return [*_headline(found), *_measured(found), *_clients(found), expected(found)]


def _headline(found: Inspection) -> Iterator[str]:
    many, spread = len(found.places), found.resampled
    share = spread.share(found.k)
    sure = f"{_percent(share)} of bootstrap resamples agree"
    if found.verdict == "alike":
        yield f"The {many} clients look alike: one model serves them all ({sure})."
        by = f"{_percent(-spread.r2)} worse" if spread.r2 < 0 else f"no more than {_percent(spread.r2)} better"
        yield f"Two clusters would predict a client's other half {by} than one (R2 {_interval(found)})."
        if _seen(found):
            least = f"by {_relative(found)} of what clients have in common"
            yield f"Clusters would have been seen if they differed {least}."
        else:
            yield "Their updates are all but zero, so nothing could differ: there may be nothing to learn here."
    elif found.verdict == "unknown":
        samples = statistics.median(place.samples for place in found.places)
        yield f"Too few samples per client to tell (median {samples:g}): the two halves of a client agree too little."
        least = f"by less than {_relative(found)} of what clients have in common" if _seen(found) else "by any amount"
        yield f"No clusters were seen, but clusters that differ {least} would not be seen either."
    elif found.verdict == "weak":
        yield f"The {many} clients differ, but not clearly in clusters."
        better = f"predict a client's other half {_percent(spread.r2)} better than one"
        yield f"{found.k} clusters would {better} (R2 {_interval(found)}; {sure})."
        if found.doubtful:
            yield f"{len(found.doubtful)} of the {many} would lie between two of them: they differ by degrees."
    elif found.verdict == "individual":
        yield f"Hardly two of the {many} clients are alike: {found.k} clusters, fewer than three clients in each."
        yield f"They predict a client's other half {_percent(spread.r2)} better than one (R2 {_interval(found)})."
    else:
        if share >= SURE:
            yield f"The {many} clients form {found.k} clusters ({sure})."
        else:
            yield f"The {many} clients form clusters, but how many is not clear: {found.k} here, {_range(found)}."
        yield f"They predict a client's other half {_percent(spread.r2)} better than one (R2 {_interval(found)})."
        yield f"Clients in each cluster: {', '.join(map(str, found.sizes))}."


def _measured(found: Inspection) -> Iterator[str]:
    shown = found.variances
    share = shown.share
    yield (
        f"Of the differences between clients' updates {_percent(share)} are real, the rest is sampling noise; "
        f"updates of {found.depth} local step{'s' * (found.depth != 1)} were used"
        + (f" (tried: {', '.join(str(d.steps) for d in found.depths)})." if len(found.depths) > 1 else ".")
    )
    if len(found.places) + len(found.small) + len(found.missing) < found.clients:
        yield f"{len(found.places):,} of {found.clients:,} clients, drawn at random, were asked."
    if found.small:
        yield f"Not measured, with fewer than {FEWEST} training samples: {_listed(found, found.small)}."
    if found.missing:
        first = found.missing[0]
        yield f"{len(found.missing)} did not answer; {first.who}: {first.reason}."


def _clients(found: Inspection) -> Iterator[str]:
    if found.k == 1 or found.verdict in ("individual", "weak"):
        return
    alone = [place.client for place in found.places if place.alone]
    if found.doubtful:
        yield (
            f"Doubtful, less than {CLEAR:g} deviations of noise from another cluster: "
            f"{_listed(found, [place.client for place in found.doubtful])}."
        )
    else:
        sure = found.resampled.share(found.k) >= SURE
        who = "Nobody is doubtful" if sure else f"If there are {found.k} clusters, it is clear who is in which"
        yield f"{who}: all are at least {_least(found.places)} deviations of noise from another cluster."
    if alone:
        yield f"Alone in a cluster: {_listed(found, alone)}."


def expected(found: Inspection) -> str:
    """What each kind of model can be expected to give."""
    errors = found.variances.errors
    if errors.one <= 0:
        return "What models of different kinds would give cannot be estimated: updates do not differ at all."
    parts = [("one model", errors.one)]
    parts += [(f"{found.k} cluster models", errors.clusters)] if found.k > 1 else []
    parts += [("personal models", found.personal_error), ("each client alone", errors.local)]
    said = ", ".join(f"{name} {_ratio(value / errors.one)}" for name, value in parts)
    return (
        f"Estimate, not accuracy: the error of the update that a client gets, {found.depth} local steps from a random "
        f"model, where one model is 100: {said}. Clients that only have other shares of labels count as different, "
        "though one model may serve them."
    )


def compared(found: Inspection) -> list[str]:
    """What distinguishes the clusters, a line each, and what that means; nothing where it was not asked for."""
    if found.contrasts is None or found.k == 1:
        return []
    classes = [d for one in found.contrasts for d in one.labels if not d.deviations]
    others = [d for one in found.contrasts for d in (*one.labels, *one.inputs)]
    labels = max((abs(d.here - d.everywhere) for d in classes), default=0.0) >= SHARE
    inputs = max((abs(d.deviations) for d in others), default=0.0) >= DEVIATIONS
    if labels and not inputs:
        meaning = "The clusters have different shares of labels; one model may serve them, so compare with fedavg."
    elif not labels and not inputs:
        meaning = "Labels and inputs are much the same everywhere: the clusters differ in how the two go together."
    else:
        meaning = f"The clusters have different inputs{' and different shares of labels' if labels else ''}."
    return [*(contrast(one) for one in found.contrasts), meaning]


def contrast(found: Contrast) -> str:
    """What distinguishes a cluster, in a line."""
    return f"Cluster {found.cluster}: {differences(found) or 'labels and inputs as everywhere'}."


def differences(found: Contrast) -> str:
    """What a cluster has more or less of than everybody; differences that are too small to matter are left out."""
    labels = "; ".join(_label(one) for one in found.labels if _tells(one))
    inputs = "; ".join(f"{one.what} {one.deviations:+.2f} deviations" for one in found.inputs if _tells(one))
    return "; ".join(([labels] if labels else []) + ([f"inputs: {inputs}"] if inputs else []))


def _tells(one: Difference) -> bool:
    return abs(one.deviations) >= DEVIATIONS if one.deviations else abs(one.here - one.everywhere) >= SHARE


def _label(one: Difference) -> str:
    if one.deviations:
        return f"{one.what} {one.deviations:+.2f} deviations"
    return f"{one.what} {_percent(one.here)} (all: {_percent(one.everywhere)})"


def _listed(found: Inspection, clients: Sequence[int]) -> str:
    """Clients by name, as many as are read."""
    shown = ", ".join(found.who(client) for client in clients[:NAMED])
    return shown + (f" and {len(clients) - NAMED} more" if len(clients) > NAMED else "")


def _range(found: Inspection) -> str:
    """The numbers of clusters that nine of ten resamples show."""
    numbers, total = list[int](), 0.0
    for k, share in found.resampled.counts:
        numbers.append(k)
        total += share
        if total >= SURE:
            break
    return f"{min(numbers)} to {max(numbers)} in {_percent(SURE)} of bootstrap resamples"


def _interval(found: Inspection) -> str:
    spread = found.resampled
    return f"{spread.r2:.2f}, 95 % interval {spread.low:.2f} to {spread.high:.2f}"


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def _ratio(value: float) -> str:
    return f"{100 * value:.0f}" if value < 100 else "over 9,999"


def _seen(found: Inspection) -> bool:
    return found.visible is not None and math.isfinite(found.visible) and found.variances.common > 0


def _relative(found: Inspection) -> str:
    """The least difference that would be seen, as a length, relative to that of the common update."""
    if not _seen(found) or found.visible is None:
        return "any multiple"
    return _percent(math.sqrt(found.visible / found.variances.common))


def _least(places: Sequence[Place]) -> str:
    known = [place.margin for place in places if place.margin is not None]
    return f"{math.floor(10 * min(known)) / 10:g}" if known and math.isfinite(min(known)) else "many"
