"""Clients never seen find their places: what `result.admit` says of each alone, from a file of any order."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tables import METHODS_TRIED, rows_of, shuffled, trained, write
from typer.testing import CliRunner

import coterie
from conftest import few, raises
from coterie.data import table as table_module
from coterie.serving.assign import placements
from coterie.serving.fit_of_newcomers import far_below
from coterie.serving.spool import ClientRows, Spool
from coterie.tools.cli.main import app


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("assign")


@pytest.fixture(scope="module")
def wecfl(folder: Path) -> Path:
    run = trained(folder, "wecfl", rounds=12)
    (folder / "train.csv").rename(folder / "gone.csv")  # nothing here needs the training data
    return run


def columns(rows: list[tuple[str, ...]], site: str) -> tuple[dict[str, Any], np.ndarray[Any, Any]]:
    mine = [row for row in rows if row[0] == site]
    return {"a": [r[1] for r in mine], "b": [r[2] for r in mine], "colour": [r[3] for r in mine]}, np.array(
        [r[4] for r in mine]
    )


@pytest.mark.parametrize("name", few(METHODS_TRIED, "wecfl", "fedavg", "fedem", "halves", "local"))
def test_the_place_of_each_is_what_admit_says_of_it_alone(tmp_path: Path, name: str) -> None:
    result = coterie.load(trained(tmp_path, name, rounds=3))
    rows = shuffled(rows_of((20, 21, 22), 12, seed=1))
    found = {one.client: one for one in coterie.assign(result, write(tmp_path / "new.csv", rows))}
    assert sorted(found) == ["site-20", "site-21", "site-22"]
    for site, one in found.items():
        if name == "local":
            assert one.none_fits
            assert "own" in one.problem
            continue
        served = result.admit([columns(rows, site) * 2])
        assert one.samples == 12
        assert one.accuracy == pytest.approx(served.accuracy)
        assert one.loss == pytest.approx(float(served.clients.loss[0]), rel=1e-5)
        if name in ("fedavg", "ditto"):
            assert one.cluster is None
            assert one.confidence is None
        elif served.clients.shares is not None:
            assert one.shares is not None
            assert one.confidence == max(one.shares)
        elif one.nearest is not None:
            assert one.nearest == served.assignments[0]
            assert one.confidence == pytest.approx(served.confidence(0), rel=1e-4)


def test_newcomers_by_rule_and_none_of_these(wecfl: Path, tmp_path: Path) -> None:
    """Sites 20 and 22 follow the even rule, 21 and 23 the odd one, 30 and 31 neither."""
    rows = [*rows_of((20, 21, 22, 23), 30, seed=1), *rows_of((30, 31), 30, seed=2, rule=2)]
    result = coterie.load(wecfl)
    found = coterie.assign(result, write(tmp_path / "new.csv", rows), out=tmp_path / "out.csv")
    even, odd = (int(result.assignments[i]) for i in (0, 1))
    assert [one.cluster for one in found] == [even, odd, even, odd, None, None]
    assert [one.none_fits for one in found] == [False] * 4 + [True] * 2
    assert all(one.confidence is not None and one.confidence > 0.99 for one in found.placements[:4])
    assert all(one.nearest is not None for one in found)
    assert str(found) == "6 newcomers, 2 in cluster 0, 2 in cluster 1, 2 fit none of these"
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert len(lines) == 7
    assert lines[1].startswith(f"site-20,{even},{even},")
    assert lines[5].startswith("site-30,,")


def test_neither_order_nor_size_of_chunks_matters(wecfl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of(range(20, 25), 7, seed=1)
    together = {one.client: one for one in coterie.assign(wecfl, write(tmp_path / "a.csv", rows))}
    monkeypatch.setattr(table_module, "CHUNK_ROWS", 3)
    apart = {one.client: one for one in coterie.assign(wecfl, write(tmp_path / "b.csv", shuffled(rows)))}
    for name, one in together.items():
        assert apart[name].cluster == one.cluster
        assert apart[name].loss == pytest.approx(one.loss)


def test_one_client_is_in_memory_at_a_time(wecfl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 40 newcomers of 5 rows each, mixed: one, and the one that was placed before it, at most."""
    alive: weakref.WeakSet[ClientRows] = weakref.WeakSet()
    seen, largest, most = 0, 0, 0
    read, chunks = Spool.client, table_module.CsvRows.chunks

    def noted(self: Spool, client: int) -> ClientRows:
        nonlocal seen, most
        found = read(self, client)
        alive.add(found)
        gc.collect()
        seen, most = seen + 1, max(most, len(alive))
        return found

    def watched(self: Any, features: Any, others: Any) -> Any:
        nonlocal largest
        for chunk in chunks(self, features, others):
            largest = max(largest, len(chunk))
            yield chunk

    monkeypatch.setattr(Spool, "client", noted)
    monkeypatch.setattr(table_module.CsvRows, "chunks", watched)
    monkeypatch.setattr(table_module, "CHUNK_ROWS", 16)
    file = write(tmp_path / "new.csv", shuffled(rows_of(range(100, 140), 5)))
    assert sum(1 for _ in placements(wecfl, file)) == seen == 40
    assert most <= 2
    assert largest <= 16


def test_known_clients_keep_their_place(wecfl: Path, tmp_path: Path) -> None:
    result = coterie.load(wecfl)
    found = coterie.assign(result, write(tmp_path / "new.csv", rows_of((3, 20), 10)))
    assert [one.known for one in found] == [True, False]
    assert found.placements[0].cluster == result.assignments[3]
    assert "1 of the run already" in str(found)


def test_pairs_tables_and_federations(wecfl: Path) -> None:
    rows = rows_of((20, 21), 20, seed=1)
    result = coterie.load(wecfl)
    pairs = [columns(rows, site) for site in ("site-20", "site-21")]
    table = {name: [row[i] for row in rows] for i, name in enumerate(("site", "a", "b", "colour", "level"))}
    by_pairs, by_table = coterie.assign(result, iter(pairs)), coterie.assign(result, table)
    assert [one.client for one in by_pairs] == ["0", "1"]
    assert [one.cluster for one in by_pairs] == [one.cluster for one in by_table]
    assert [one.loss for one in by_pairs] == pytest.approx([one.loss for one in by_table])


def test_other_names_of_columns_and_a_file_of_one_client(wecfl: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "mine.csv", rows_of((20,), 10), "place,a,b,colour,outcome")
    (one,) = coterie.assign(wecfl, file, y="outcome", client="place")
    assert one.client == "site-20"
    with raises("data-column-unknown", "has no column 'site' that says whose the rows are.*--client NAME"):
        coterie.assign(wecfl, file, y="outcome")  # as predict does: rows of many clients would be taken for one
    (one,) = coterie.assign(wecfl, file, y="outcome", newcomer="mine")
    assert (one.client, one.samples, one.known) == ("mine", 10, False)
    with raises("option-conflict", "has a column 'place'"):
        coterie.assign(wecfl, file, y="outcome", client="place", newcomer="mine")


def test_an_accuracy_far_below_its_clusters_is_marked(tmp_path: Path) -> None:
    """It is within what clients of this cluster differ by, so that it is said to fit; and yet it is far below."""
    assert far_below(0.5, 0.8, 60)  # 0.3 is above a tenth and 2 standard errors, 2 * sqrt(0.25 / 59) = 0.13
    assert not far_below(0.5, 0.8, 6)  # 2 * sqrt(0.25 / 5) = 0.45
    assert not far_below(0.75, 0.8, 10000)  # not a tenth
    assert not far_below(None, 0.8, 60)
    assert not far_below(0.5, None, 60)
    rows = rows_of(range(10), 30)
    wrong = {i for i, row in enumerate(rows) if row[0] in ("site-0", "site-1", "site-2") and i % 10 < 4}
    turned = [(*r[:4], {"high": "low", "low": "high"}[r[4]]) if i in wrong else r for i, r in enumerate(rows)]
    write(tmp_path / "train.csv", turned)
    run = trained(tmp_path, "wecfl")
    new = rows_of((20,), 60, seed=1)
    new = [(*r[:4], {"high": "low", "low": "high"}[r[4]]) if i % 5 < 2 else r for i, r in enumerate(new)]
    file = write(tmp_path / "new.csv", new)
    (one,) = coterie.assign(run, file, level=1e-6)
    clusters = {c.cluster: c for c in coterie.clusters(run).clusters}
    assert one.nearest is not None
    assert one.usual == pytest.approx(clusters[one.nearest].mean)
    assert (one.fits, one.far_below) == (True, True)
    said = CliRunner().invoke(app, ["assign", str(run), "--data", str(file), "--level", "1e-6"]).output
    assert f"{one.p_value:.2g}" in said
    assert f"{one.usual:.1%}" in said
    assert said.count("far below") == 2  # in its row, and what it means


def test_a_split_column_says_what_it_is_placed_by_and_scored_on(wecfl: Path, tmp_path: Path) -> None:
    rows = [(*row, "test" if i % 3 == 0 else "train") for i, row in enumerate(rows_of((20,), 12))]
    (one,) = coterie.assign(wecfl, write(tmp_path / "new.csv", rows, "site,a,b,colour,level,split"))
    assert one.samples == 4


@pytest.mark.parametrize(
    ("header", "row", "code", "said"),
    [
        ("site,a,colour,level", "x,1,red,high", "data-column-unknown", "no column 'b'"),
        ("site,a,b,colour", "x,1,2,red", "data-column-unknown", "'level' of labels"),
        ("site,a,b,colour,level", "x,1,2,red,medium", "data-cell", "line 3: .*high, low, not on 'medium'"),
        ("site,a,b,colour,level", "x,one,2,red,high", "data-cell", "column 'a', line 3: 'one' is not a number"),
        ("site,a,b,colour,level", "x,1,2,red,", "data-cell", "line 3: the label is missing"),
        ("site,a,b,colour,level", ",1,2,red,high", "data-cell", "line 3: the client is missing"),
        ("site,a,b,colour,level", "x,1,2", "data-cell", "line 3"),
    ],
)
def test_what_is_wrong_with_a_file(wecfl: Path, tmp_path: Path, header: str, row: str, code: str, said: str) -> None:
    good = ",".join({"site": "x", "a": "1", "b": "2", "colour": "red", "level": "low"}[n] for n in header.split(","))
    (tmp_path / "new.csv").write_text(f"{header}\n{good}\n{row}\n")
    with raises(code, match=said):
        coterie.assign(wecfl, tmp_path / "new.csv", out=tmp_path / "out.csv")
    assert not list(tmp_path.glob("out*"))


def test_a_category_that_was_never_seen_is_told_of(wecfl: Path, tmp_path: Path) -> None:
    rows = [(*row[:3], "green", row[4]) for row in rows_of((20,), 4)]
    with pytest.warns(coterie.CoterieWarning, match="column 'colour': 'green' is in no training row"):
        coterie.assign(wecfl, write(tmp_path / "new.csv", rows))


def test_a_missing_value_is_handled_as_in_training(wecfl: Path, tmp_path: Path) -> None:
    """The table has categories, so that missing numbers are filled in by the mean of the training rows."""
    rows = rows_of((20,), 6)
    holes = [(row[0], "", *row[2:]) if i == 0 else row for i, row in enumerate(rows)]
    (one,) = coterie.assign(wecfl, write(tmp_path / "new.csv", holes))
    assert one.samples == 6


def test_level_is_a_probability(wecfl: Path, tmp_path: Path) -> None:
    with raises("argument-invalid", match="level"):
        coterie.assign(wecfl, write(tmp_path / "new.csv", rows_of((20,), 4)), level=2.0)
