"""The page as text: nothing from a file is markup, nothing is fetched, every run is shown as what it is."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import runs
from test_record import BAD

from conftest import few
from coterie.tools.report.page import render
from coterie.tools.report.record import read_run

EVIL = "<script>alert('x')</script><img src=x onerror=alert(1)>"


class Tags(HTMLParser):
    """Counts tags, and collects what is written outside scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self._silent = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self._silent = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._silent = False

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.text += data


def figures_of(page: str) -> dict[str, object]:
    found = re.search(r'<script id="figures" type="application/json">(.*?)</script>', page)
    assert found
    assert "<" not in found[1]  # "</script" in a label would end it; hover texts do have "<br>"
    data = json.loads(found[1])
    assert set(data["templates"]) == {"light", "dark"}
    assert isinstance(data["figures"], dict)
    return data["figures"]


def test_one_run(tmp_path: Path) -> None:
    page = render([read_run(runs.write(tmp_path))])
    tags = Tags(page)
    assert ("lang", "en") in tags.attributes
    assert "wecfl on toys, in two groups" in tags.text
    assert "75.0 %" in tags.text  # accuracy
    assert "70.0 %" in tags.text  # macro-F1
    assert "12 kB" in tags.text  # 3 * 4000 bytes sent to clients
    assert "asleep" in tags.text
    assert "  name: wecfl\n  k: 2" in tags.text  # the configuration
    drawn = figures_of(page)
    charts = [value for name, value in tags.attributes if name == "id" and value in drawn]
    assert len(charts) == len(drawn) == 14
    labels = [value for name, value in tags.attributes if name == "aria-label"]
    assert "Accuracy over rounds. Accuracy from 50.0 % in round 1 to 75.0 % in round 3; best 75.0 %." in labels
    anchors = {value for name, value in tags.attributes if name == "id"}
    links = [value for name, value in tags.attributes if name == "href"]
    assert len(links) == 6
    assert all(link and link[1:] in anchors for link in links)


def test_nothing_is_fetched(tmp_path: Path) -> None:
    tags = Tags(render([read_run(runs.write(tmp_path))]))
    assert not [a for a in tags.attributes if a[0] in ("src", "srcset")]
    assert not [a for a in tags.attributes if a[0] == "href" and not str(a[1]).startswith("#")]
    assert "link" not in tags.tags
    assert any(value and value.startswith("default-src 'none'") for _, value in tags.attributes)


def test_words_from_files_are_never_markup(tmp_path: Path) -> None:
    clients = [row | {"name": EVIL} for row in runs.CLIENTS]
    rounds = [runs.ROUNDS[0] | {"missing": [{"client": 1, "reason": EVIL}]}, *runs.ROUNDS[1:]]
    settings = runs.config(name=EVIL, extra={EVIL: EVIL})
    evil = runs.write(tmp_path / "<img src=x onerror=alert(2)>", settings, rounds, clients=clients)
    about = json.loads((evil / "run.json").read_text())
    about |= {"started": EVIL, "versions": {EVIL: EVIL}, "belongs": {"data": EVIL, "model": EVIL}}
    (evil / "run.json").write_text(json.dumps(about))
    good = runs.write(tmp_path / "good")
    for page, scripts in ((render([read_run(evil)]), 3), (render([read_run(evil), read_run(good)]), 3)):
        tags = Tags(page)
        assert tags.tags.count("script") == scripts
        assert "img" not in tags.tags
        assert not [a for a in tags.attributes if a[0].startswith("on")]
        assert EVIL in tags.text
        # Labels within figures: plotly would read markup there.
        assert "<img" not in json.dumps(figures_of(page))
        assert "<script>alert" not in json.dumps(figures_of(page))


@pytest.mark.parametrize(
    "case", few(BAD, *(case for case in BAD if "garbage" in case or "missing" in case or "odd" in case))
)
def test_bad_runs_are_shown_as_what_they_are(tmp_path: Path, case: str) -> None:
    spoil, status = BAD[case]
    spoil(runs.write(tmp_path / "bad"))
    bad = read_run(tmp_path / "bad")
    tags = Tags(render([bad]))
    assert ("class", f"status {status}") in tags.attributes
    if bad.problem:
        assert bad.problem[1:] in tags.text


def test_empty_run_alone_and_with_others(tmp_path: Path) -> None:
    empty = read_run(tmp_path / "none")
    assert "No round was evaluated, so there is nothing to draw." in Tags(render([empty])).text
    text = Tags(render([empty, read_run(runs.write(tmp_path / "good"))])).text
    assert "2 runs, 1 configuration" in text
    assert "There is no such directory." in text


def test_several_runs(tmp_path: Path) -> None:
    records = [
        read_run(runs.score_only(tmp_path / f"{name}-{seed}", score + 0.01 * seed * seed, seed, name=name))
        for name, score in (("fedavg", 0.5), ("wecfl", 0.9))
        for seed in range(3)
    ]
    page = render(records)
    tags = Tags(page)
    assert "6 runs, 2 configurations" in tags.text
    assert "91.7 ± 2.1" in tags.text  # 90, 91, 94
    assert tags.tags.count("details") == 6
    names = set(figures_of(page))
    assert {"all-compare-accuracy", "all-final-accuracy", "all-compare-sizes", "run6-map"} <= names


def test_of_many_runs_only_some_have_their_own_figures(tmp_path: Path) -> None:
    record = read_run(runs.write(tmp_path))
    tags = Tags(render([record] * 14))
    assert tags.tags.count("details") == 12
    assert "The other 2 runs have no figures of their own here" in tags.text


@pytest.mark.exhaustive
def test_large_run_is_a_file_of_less_than_ten_megabytes(tmp_path: Path) -> None:
    page = render([read_run(runs.write_large(tmp_path, clients=1000, rounds=300))])
    assert len(page.encode()) < 10_000_000
    figures = figures_of(page)
    assert len(json.dumps(figures)) < 1_500_000
