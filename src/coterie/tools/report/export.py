"""Figures as files, PNG and SVG, all through one session of a browser without a window."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.core.errors import CoterieError
from coterie.tools.report.figures import Picture, of_run, of_runs
from coterie.tools.report.record import RunRecord

WIDTH, WIDER = 820, 1100  # in points; a PNG has twice as many pixels
SECONDS = 60.0  # for one figure; a busy machine takes a few
WIDE = ("sizes", "moves", "missing")
NO_BROWSER = (
    "--figures needs a Chrome or Chromium to draw with, and none was found: install one (Debian, Ubuntu: apt install "
    "chromium), or say where it is in the environment variable BROWSER_PATH; the page itself needs none"
)


@dataclass(frozen=True, eq=False)
class File:
    """A figure, and where it goes, without the ending."""

    stem: Path
    picture: Picture


@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure as one file, whose ending says in which format."""

    path: Path
    figure: Any  # a plotly Figure
    width: int
    scale: int = 1


def files_of(records: Sequence[RunRecord], directory: Path) -> list[File]:
    """Figures of one run lie in the directory itself; several runs have theirs in one each, beside the comparison."""
    if len(records) == 1:
        return [File(directory / picture.name, picture) for picture in of_run(records[0])]
    found = [File(directory / picture.name, picture) for picture in of_runs(records)]
    for number, record in enumerate(records, 1):
        own = directory / f"{number:02d}-{_safe(record.path.absolute().name)}"
        found += [File(own / picture.name, picture) for picture in of_run(record)]
    return found


def write_figures(files: Sequence[File], formats: Sequence[str], say: Callable[[str], None]) -> list[Path]:
    """Write them all, in each of the formats (png, svg), and say which is being written."""
    drawings = [
        Drawing(
            file.stem.with_name(f"{file.stem.name}.{ending}"),
            file.picture.figure,
            width=WIDER if file.picture.name in WIDE else WIDTH,
            scale=2 if ending == "png" else 1,
        )
        for file in files
        for ending in formats
    ]
    draw_figures(drawings, say)
    return [drawing.path for drawing in drawings]


def draw_figures(drawings: Sequence[Drawing], say: Callable[[str], None], seconds: float = SECONDS) -> None:
    """Draw them one after another in one browser, which has so many seconds for each."""
    try:
        from choreographer.errors import BrowserDepsError, BrowserFailedError, ChromeNotFoundError
        from kaleido import Kaleido
    except ImportError:
        raise CoterieError(
            "coterie report --figures needs kaleido: pip install 'coterie[report]'", code="extra-missing"
        ) from None
    try:
        for folder in {drawing.path.parent for drawing in drawings}:
            folder.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(1) as beside:  # a notebook has a loop of its own running in this thread
            beside.submit(asyncio.run, _draw(Kaleido, drawings, say, seconds)).result()
    except ChromeNotFoundError:
        raise CoterieError(NO_BROWSER, code="report-browser") from None
    except (BrowserDepsError, BrowserFailedError) as error:
        raise CoterieError(f"--figures: the browser does not start ({error})", code="report-browser") from None
    except TimeoutError:
        raise CoterieError(
            f"--figures: the browser did not draw a figure within {seconds:g} seconds", code="report-browser"
        ) from None
    except OSError as error:
        if error.filename is None:  # a channel to the browser that has closed
            raise CoterieError(f"--figures: the browser has stopped ({error})", code="report-browser") from None
        raise CoterieError(f"{error.filename}: cannot be written ({error.strerror})", code="disk-write") from None


async def _draw(browser: Any, drawings: Sequence[Drawing], say: Callable[[str], None], seconds: float) -> None:
    # Without mathjax=False it would be fetched from the network, and waited for where there is none.
    async with browser(mathjax=False, timeout=seconds) as session:
        for number, drawing in enumerate(drawings, 1):
            say(f"{number}/{len(drawings)} {drawing.path}")
            size = {"width": drawing.width, "height": drawing.figure.layout.height}
            options = {"format": drawing.path.suffix[1:], "scale": drawing.scale, **size}
            await session.write_fig(drawing.figure, path=str(drawing.path), opts=options, cancel_on_error=True)


def _safe(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name)[:80] or "run"
