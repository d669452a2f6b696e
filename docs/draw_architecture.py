"""Draws the pictures of docs/architecture.md: `python docs/draw_architecture.py`."""

from __future__ import annotations

from html import escape
from pathlib import Path

PICTURES = Path(__file__).parent / "pictures"
INK, LINE = "#1b2b34", "#5f7380"
FILLS = ("#e3f2ef", "#d3eae5", "#fff3d9", "#fde9c4", "#e4ebfb", "#d7e1f7", "#f3e6f5", "#ecdaf0", "#e7d3ec", "#e2cbe8")
# From the top: a layer imports only from those below it.
LAYERS: tuple[tuple[tuple[str, str], ...], ...] = (
    (("tools", "command line, report, dashboard, experiments, trackers"),),
    (("serving", "life after training: place, predict, export, HTTP, drift"),),
    (("network", "real clients: messages, engine, worker, flower"), ("testing", "for your own method")),
    (("training", "a run: round loop, sampling, evaluation, run directory, result"),),
    (("layers", "around an engine: attacks, screening, quorum, privacy, optimizers"),),
    (("engines", "how visits reach clients: sequential, workers, batched, ray"),),
    (("methods", "one paper, one file"), ("client", "what runs at a client")),
    (("zoo", "networks by name"), ("clustering", "functions on arrays"), ("data", "federations, partitions")),
    (("core", "tasks, references, replies, models as vectors, seeds, errors"),),
)
WIDTH, HEIGHT, GAP = 760, 52, 10


def box(x: float, y: float, width: float, height: float, fill: str, title: str, words: str) -> str:
    """A rectangle with a name and what it is."""
    middle = x + width / 2
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" fill="{fill}" stroke="{LINE}"/>'
        f'<text x="{middle:g}" y="{y + 22:g}" font-size="15" font-weight="bold">{escape(title)}</text>'
        f'<text x="{middle:g}" y="{y + 40:g}" font-size="12">{escape(words)}</text>'
    )


def arrow(x1: float, y1: float, x2: float, y2: float, words: str, above: float = -7) -> str:
    """An arrow with what travels along it."""
    return (
        f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{LINE}" marker-end="url(#tip)"/>'
        f'<text x="{(x1 + x2) / 2:g}" y="{(y1 + y2) / 2 + above:g}" font-size="12">{escape(words)}</text>'
    )


def svg(width: float, height: float, title: str, parts: list[str]) -> str:
    """A whole picture on a light ground, so that it can be read in a dark theme too."""
    tip = (
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0 L10 5 L0 10 z" fill="{LINE}"/></marker></defs>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'font-family="sans-serif" text-anchor="middle" fill="{INK}"><title>{escape(title)}</title>{tip}'
        f'<rect width="{width:g}" height="{height:g}" fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def layers() -> str:
    """Every layer a row; packages of one row do not import each other."""
    parts = []
    for row, names in enumerate(LAYERS):
        each = (WIDTH - GAP * (len(names) + 1)) / len(names)
        for column, (name, words) in enumerate(names):
            x = GAP + column * (each + GAP)
            parts.append(box(x, GAP + row * (HEIGHT + GAP), each, HEIGHT, FILLS[row], name, words))
    height = GAP + len(LAYERS) * (HEIGHT + GAP)
    parts.append(arrow(WIDTH + 24, GAP, WIDTH + 24, height - GAP, ""))
    turn = f"rotate(90 {WIDTH + 44} {height / 2:g})"
    parts.append(
        f'<text x="{WIDTH + 44}" y="{height / 2:g}" font-size="13" transform="{turn}">imports only downwards</text>'
    )
    return svg(WIDTH + 60, height, "The layers of the package, highest first", parts)


def contract() -> str:
    """A round: the loop calls a method, the method asks, an engine carries, clients answer."""
    y, high = 50, 60
    spots = {"round loop": 10, "method": 240, "ask": 470, "engine": 700, "client": 930}
    words = {
        "round loop": "training/loop",
        "method": "methods/",
        "ask": "quorum, names",
        "engine": "engines/, network/",
        "client": "client/visit",
    }
    parts = [box(x, y, 130, high, FILLS[i + 2], name, words[name]) for i, (name, x) in enumerate(spots.items())]
    out = ("state, cohort", "tasks", "visit", "tasks, memory")
    back = ("new state", "replies by id", "outcome", "answers, memory")
    for (left, right), there, here in zip(zip(list(spots)[:-1], list(spots)[1:], strict=True), out, back, strict=True):
        a, b = spots[left] + 130, spots[right]
        parts.append(arrow(a + 2, y + 20, b - 2, y + 20, there))
        parts.append(arrow(b - 2, y + 42, a + 2, y + 42, here, above=16))
    parts.append(
        '<text x="535" y="24" font-size="13">the server is on the left; data stays with the client, on the right</text>'
    )
    return svg(1070, 130, "What calls what in a round", parts)


def main() -> None:
    """Write both."""
    (PICTURES / "layers.svg").write_text(layers())
    (PICTURES / "round.svg").write_text(contract())


if __name__ == "__main__":
    main()
