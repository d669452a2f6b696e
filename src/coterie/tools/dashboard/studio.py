"""Figures of the selected runs, drawn again only when the files behind them have changed."""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from coterie.tools.dashboard.listing import DRAWN, Line, Signature, fingerprint, signature
from coterie.tools.report.figures import KINDS, Kind, of_runs, words
from coterie.tools.report.record import RunRecord, read_run

SLOW = ("map",)  # t-SNE takes seconds
PAUSE = 10.0  # seconds between two drawings of a slow figure
MODELS = ("sketch.safetensors", "clients.json")  # what a slow figure waits for
COMPARED = ("compare-accuracy", "compare-macro-f1", "compare-loss", "final-accuracy", "final-loss", "compare-sizes")
KEPT = 64  # runs in memory

Value = TypeVar("Value")


@dataclass(frozen=True, eq=False)
class Drawn:
    """A figure as JSON, in the light theme; its template is all that a theme changes."""

    figure: dict[str, Any]
    words: str
    height: int
    print: str


class Kept(Generic[Value]):
    """The last few values by key, each with what it was made from. One thread makes a value, others wait for it."""

    def __init__(self, most: int, pause: float = 0.0) -> None:
        self._most, self._pause = most, pause
        self._values: OrderedDict[object, tuple[object, float, Value]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: object, source: object, make: Callable[[], Value]) -> Value:
        """The value, made anew if its source has changed and the pause since the last time is over."""
        with self._lock:
            if key in self._values:
                made_from, when, value = self._values[key]
                self._values.move_to_end(key)
                if made_from == source or time.monotonic() - when < self._pause:
                    return value
            value = make()
            self._values[key] = source, time.monotonic(), value
            while len(self._values) > self._most:
                self._values.popitem(last=False)
            return value


class Studio:
    """Reads runs and draws them; knows nothing of browsers."""

    def __init__(self, pause: float = PAUSE) -> None:
        self._records: Kept[RunRecord] = Kept(KEPT)
        self._quick: Kept[dict[str, Drawn]] = Kept(KEPT)
        self._slow: Kept[dict[str, Drawn]] = Kept(KEPT, pause)
        self._together: Kept[dict[str, Drawn]] = Kept(8)

    def source(self, line: Line) -> tuple[str, Signature]:
        """What a run's record is made from; its status may change though no file does."""
        return line.summary.status, signature(line.summary.path, DRAWN)

    def record(self, line: Line) -> RunRecord:
        """All that the run's directory says now."""
        return self._records.get(line.key, self.source(line), lambda: read_run(line.summary.path))

    def quick(self, line: Line) -> dict[str, Drawn]:
        """The figures of one run, but for the slow ones."""
        kinds = [kind for kind in KINDS if kind.name not in SLOW]
        return self._quick.get(line.key, self.source(line), lambda: _draw(self.record(line), kinds))

    def slow(self, line: Line) -> dict[str, Drawn]:
        """The slow figures of one run: of a run under way they may be some seconds old."""
        kinds = [kind for kind in KINDS if kind.name in SLOW]
        source = signature(line.summary.path, MODELS)
        return self._slow.get(line.key, source, lambda: _draw(self.record(line), kinds))

    def together(self, lines: Sequence[Line]) -> dict[str, Drawn]:
        """The figures of several runs in one."""
        source = tuple(self.source(line) for line in lines)
        keys = tuple(line.key for line in lines)

        def draw() -> dict[str, Drawn]:
            pictures = of_runs([self.record(line) for line in lines])
            return {picture.name: _drawn(picture.figure) for picture in pictures}

        return self._together.get(keys, source, draw)


def _draw(record: RunRecord, kinds: Sequence[Kind]) -> dict[str, Drawn]:
    found = {}
    for kind in kinds:
        try:
            figure = kind.draw(record)
        except Exception as error:  # a run that nobody thought of must not take the other figures with it
            sorry = f"The figure {kind.name} cannot be drawn: {error!r}"
            found[kind.name] = Drawn({"data": [], "layout": {}}, sorry, 80, fingerprint(sorry))
            continue
        if figure is not None:
            found[kind.name] = _drawn(figure)
    return found


def _drawn(figure: Any) -> Drawn:
    plain = json.loads(figure.to_json())
    plain["layout"].pop("template", None)
    height = int(plain["layout"].pop("height", 420))
    return Drawn(plain, words(figure), height, fingerprint(plain))
