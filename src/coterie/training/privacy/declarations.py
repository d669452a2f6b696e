"""Is what a method releases of a client accounted for? The method says it (`methods.contract.Releases`).

A method of yours declares it as a class attribute of its own, `releases = Releases(...)`; one that declares nothing is
refused. What a declaration does not allow is refused when it is asked (see `private_ask`), so a wrong one is an error,
never a wrong guarantee.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from coterie.core.errors import CoterieError
from coterie.methods.contract import Refusal, Releases, releases_of

WRITE = "method.name=ifca (or fedavg, fedprox, wecfl, fesem, flux, halves) is accounted for"


def declared(method: Any) -> Releases:
    """What a method releases; an error with the reason where that is not accounted for."""
    found = releases_of(method)
    if isinstance(found, str):
        raise CoterieError(f"privacy: {type(method).__name__} is refused: {found}; {WRITE}", code="privacy-unaccounted")
    if refused := list(_refused_settings(method, found)):
        why = "; ".join(f"{what} is refused: {one.why}" for what, one in refused)
        write = " ".join(one.write for _, one in refused)
        then = "".join(f" ({one.then})" for _, one in refused if one.then)
        raise CoterieError(f"privacy: {why}. Write {write}{then}", code="privacy-unaccounted")
    return found


def _refused_settings(method: Any, found: Releases) -> Iterator[tuple[str, Refusal]]:
    """What of a method's settings is refused, why, and what to write instead."""
    k = getattr(method, "k", 1)
    if not isinstance(k, int):
        yield f"k={k!r}", Refusal(k, "the rule looks at single clients", "method.k=4")
    for name, refusal in found.refused.items():
        if getattr(method, name) == refusal.value:
            yield f"{name}={refusal.value!r}", refusal
    local = getattr(method, "local", None)
    if local is not None and local.lr == "auto":
        yield "local.lr=auto", Refusal("auto", "it tries rates on clients' data, and a number does not", "local.lr=0.1")
