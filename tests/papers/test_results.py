"""Outcomes on disk: written whole, read back, never taken for those of another configuration."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from conftest import raises
from coterie.core.metrics import Summary
from coterie.methods.wecfl import WeCFL
from coterie.training.build import build
from coterie.training.events import RoundDone
from papers.cell import Cell, Outcome, OwnPage, Run, Table, Tree, last
from papers.page import own_pages
from papers.results import Meant, Results, _short, configured, fingerprint, outcome_of, stale
from papers.show import seeds
from papers.standing import Line
from papers.tables import TABLES

CONFIG: Tree = {
    "data": {"name": "digits", "partition": {"name": "rotated", "clients": 8}},
    "model": {"name": "linear"},
    "method": {"name": "wecfl", "k": 2},
    "local": {"epochs": 1, "batch": 8, "lr": 0.1},
    "rounds": 2,
}
RUN = Run("some/run", CONFIG)


def changed(**keys: Any) -> Run:
    return Run("some/run", CONFIG | keys)


def event(round_: int, accuracy: float | None = 0.5, discrepancy: float | None = 1.5) -> RoundDone:
    summary = Summary(0.123456789, accuracy, accuracy, 2, (3, 5), 1.0, 0.5)
    return RoundDone(round_, 8, 8, (), 1, 0.25, summary, discrepancy=discrepancy)


def outcome(seed: int = 0, **more: Any) -> Outcome:
    made = outcome_of(RUN, seed, [event(1), event(2, 2 / 3)], {"clusters": 1 / 3, "each": (0.1, 0.2)}, 1.5, None)
    return dataclasses.replace(made, **more)


# ------------------------------------------------------------------------------------------------ what is kept


def test_what_is_kept_of_a_run() -> None:
    unlooked = dataclasses.replace(event(1), summary=None)
    made = outcome_of(RUN, 3, [unlooked, event(2, discrepancy=None), event(4, 0.75, None)], {}, 9.0, "mine.npz")
    assert made.curve["round"] == [2, 4]
    assert made.curve["accuracy"] == [0.5, 0.75]
    assert made.curve["sizes"] == [(3, 5), (3, 5)]
    assert made.curve["ari"] == [1.0, 1.0]
    assert "discrepancy" not in made.curve  # none in any round
    assert "mixture_error" not in made.curve
    assert (made.run, made.seed, made.seconds, made.data_from) == ("some/run", 3, 9.0, "mine.npz")
    assert made.config["engine"]["name"] == "auto"
    assert made.config["rounds"] == 2
    assert made.config["method"]["k"] == 2
    assert made.command == "python -m papers --run some/run --seed 3"
    assert made.fingerprint == fingerprint(RUN)
    assert "platform" not in made.versions
    assert {"coterie", "torch", "python"} <= set(made.versions)


def test_outcomes_of_an_earlier_revision_are_shown_and_to_be_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Results(tmp_path).save(outcome(0))
    Results(tmp_path).save(outcome(1))
    monkeypatch.setattr(WeCFL, "revision", 1, raising=False)
    results, cell = Results(tmp_path), Cell("r", "c", RUN, last(), None)
    assert results.load(RUN, 0) is None  # so that it is run again
    assert [one.seed for one in results.of(RUN)] == [0, 1]
    found = results.found(cell)
    assert found is not None
    assert (found.seeds, found.earlier) == (2, True)
    assert seeds(Line(cell, found, "")) == "2, earlier revision"
    results.save(outcome(1, seconds=9.0))  # from now on, the other does not count
    assert [(one.seed, one.seconds) for one in results.of(RUN)] == [(1, 9.0)]
    found = results.found(cell)
    assert found is not None
    assert not found.earlier


def test_the_revision_of_a_wrapped_method_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    wrapped = changed(method={"name": "wecfl-cam", "base": {"k": 2}})
    outer = Meant.by(wrapped).revision[0]
    monkeypatch.setattr(WeCFL, "revision", 7, raising=False)
    assert Meant.by(wrapped).revision == [outer, 7]


def test_pages_of_their_own_say_what_is_of_an_earlier_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = OwnPage("mine.md", lambda _: (), lambda _: "", lambda _: "# Mine\n")
    table = Table("t", "", "", "", (Cell("r", "c", RUN, last(), None),), 1.0, own_page=own)
    Results(tmp_path).save(outcome())
    assert own_pages(table, Results(tmp_path)) == [("mine.md", "# Mine\n")]
    monkeypatch.setattr(WeCFL, "revision", 1, raising=False)
    ((_, text),) = own_pages(table, Results(tmp_path))
    assert text.endswith("changed its results: wecfl.\n")


def test_save_and_load(tmp_path: Path) -> None:
    results = Results(tmp_path)
    place = results.save(outcome())
    assert place == tmp_path / "some.jsonl"
    assert [p.name for p in tmp_path.iterdir() if p.suffix != ".lock"] == ["some.jsonl"]
    found = results.load(RUN, 0)
    assert found is not None
    assert found.curve["accuracy"] == [0.5, 0.666667]
    assert found.curve["loss"] == [0.123457] * 2
    assert found.curve["sizes"] == [[3, 5], [3, 5]]
    assert found.curve["round"] == [1, 2]
    assert found.probe == {"clusters": 0.333333, "each": [0.1, 0.2]}
    assert dataclasses.replace(found, curve={}, probe={}) == dataclasses.replace(outcome(), curve={}, probe={})
    before = place.read_bytes()
    assert results.save(found).read_bytes() == before


def test_nothing_there(tmp_path: Path) -> None:
    results = Results(tmp_path / "nowhere")
    assert results.load(RUN, 0) is None
    assert results.of(RUN) == []
    assert results.found(Cell("r", "c", RUN, last(), 1.0)) is None


def test_seeds_are_pooled_in_order(tmp_path: Path) -> None:
    results = Results(tmp_path)
    for seed in (10, 2, 0):
        results.save(outcome(seed))
    assert [o.seed for o in results.of(RUN)] == [0, 2, 10]
    found = results.found(Cell("r", "c", RUN, last(), None))
    assert found is not None
    assert found.seeds == 3
    assert found.mean == pytest.approx(66.6667)


# ------------------------------------------------------------------------------------------------ what is stale


@pytest.mark.parametrize(
    "other",
    [
        changed(rounds=3),
        changed(method={"name": "wecfl", "k": 3}),
        changed(method={"name": "fesem", "k": 2}),
        changed(method={"name": "wecfl", "k": 2, "alpha": 3}),
        changed(local={"epochs": 1, "batch": 8, "lr": 0.2}),
        changed(data={"name": "digits", "partition": {"name": "rotated", "clients": 9}}),
        changed(model={"name": "mlp"}),
        changed(evaluate_whom="met", participation=0.5),
        changed(evaluate_last=2),
        Run("some/run", CONFIG, "clusters"),
    ],
    ids=lambda run: str(run)[:60],
)
def test_another_configuration_is_another_outcome(other: Run, tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.save(outcome())
    assert results.load(other, 0) is None
    assert results.of(other) == []
    assert results.load(RUN, 0) is not None


def kept_with(tmp_path: Path, change: Callable[[Tree], None]) -> Results:
    """A stored outcome whose configuration, every option of which is spelled out, was another."""
    place = Results(tmp_path).save(outcome())
    line = json.loads(place.read_text())
    change(line["config"])
    place.write_text(json.dumps(line) + "\n")
    return Results(tmp_path)


def test_a_default_that_is_another_now_makes_an_outcome_stale(tmp_path: Path) -> None:
    results = kept_with(tmp_path, lambda config: config["method"].update(kmeans_weights="equal"))
    assert results.load(RUN, 0) is None
    table = Table("t", "", "", "", (Cell("r", "c", RUN, last(), None),), 1.0)
    assert stale(results, [table]) == [
        f"{tmp_path}/some.jsonl: some/run, seed 0, was run with another method.kmeans_weights"
    ]
    assert stale(results, []) == [f"{tmp_path}/some.jsonl: no table has a run some/run"]


def test_an_option_that_came_later_or_is_gone_does_not(tmp_path: Path) -> None:
    """Today's default of an option that the outcome does not know changes nothing, or the revision would say so."""

    def older(config: Tree) -> None:
        del config["method"]["kmeans_weights"]
        del config["update_bound"]
        config["method"]["gone"] = 3

    assert kept_with(tmp_path, older).load(RUN, 0) is not None


def test_how_fast_it_is_computed_does_not_matter(tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.save(outcome())
    for run in (changed(engine={"name": "batched", "workers": 1}), changed(checkpoint_every=50)):
        assert results.load(run, 0) is not None


def test_saves_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda seed: Results(tmp_path).save(outcome(seed)), range(24)))
    assert [one.seed for one in Results(tmp_path).of(RUN)] == list(range(24))


def test_no_outcome_is_stale() -> None:
    """Where one is: run it again, or delete its line."""
    assert stale(Results(Path(__file__).parents[2] / "results"), TABLES) == []


# ---------------------------------------------------------------------------------------------- what is broken


@pytest.mark.parametrize("text", ["{", "[]", "[1, 2]", "null", "3", '"text"', "{}", '{"run": "a"}', '{"odd": 1}'])
def test_garbage_is_told(text: str, tmp_path: Path) -> None:
    results = Results(tmp_path)
    place = results.save(outcome())
    place.write_text(place.read_text() + text + "\n")
    with raises("run-damaged", match=r"some\.jsonl, line 2: not an outcome .* delete the line"):
        results.load(RUN, 0)


def test_an_unknown_column_too_many_is_told(tmp_path: Path) -> None:
    results = Results(tmp_path)
    place = results.save(outcome())
    place.write_text(json.dumps(json.loads(place.read_text()) | {"extra": 1}))
    with raises("run-damaged"):
        results.load(RUN, 0)


# --------------------------------------------------------------------------------------------------- few digits


@pytest.mark.parametrize(
    ("value", "short"),
    [
        (0.123456789, 0.123457),
        (123456.789, 123457.0),
        (1e-9 / 3, 3.33333e-10),
        (-2 / 3, -0.666667),
        (1.0, 1.0),
        (float("nan"), None),
        (float("inf"), None),
        (-float("inf"), None),
        (1234567, 1234567),  # whole numbers stay whole
        (True, True),
        (None, None),
        ("0.123456789", "0.123456789"),
        ((1 / 3, [float("nan")]), [0.333333, [None]]),
        ({"a": {"b": (2 / 3,)}}, {"a": {"b": [0.666667]}}),
    ],
)
def test_short(value: Any, short: Any) -> None:
    assert _short(value) == short
    assert type(_short(value)) is type(short)


def test_what_is_written_is_json(tmp_path: Path) -> None:
    made = outcome(probe={"x": float("nan")}, curve={"round": [1], "loss": [float("inf")]})
    text = Results(tmp_path).save(made).read_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    found = Results(tmp_path).load(RUN, 0)
    assert found is not None
    assert found.probe == {"x": None}


# ----------------------------------------------------------------------------------------------- configurations


def test_the_seed_and_the_demos_defaults() -> None:
    config = configured(RUN, 7)
    assert config.seed == 7
    assert config.rounds == 2
    assert config.participation == 1.0
    assert config.data.name == "digits"
    assert RUN.config == CONFIG  # as it was


def test_data_from_a_file_instead() -> None:
    sources = {"digits": {"name": "npz", "path": "mine.npz", "client": "owner"}}
    config = configured(RUN, 0, sources)
    assert config.data.name == "npz"
    as_the_set_is = {"standardise": False, "standardise_y": False}
    assert config.data.params == as_the_set_is | {"path": "mine.npz", "client": "owner"}
    assert config.data.partition is not None
    assert config.data.partition.name == "rotated"
    assert configured(RUN, 0, {"mnist": {"name": "npz", "path": "x"}}).data.name == "digits"


def test_a_configuration_can_be_built() -> None:
    job = build(configured(RUN, 0))
    assert len(job.federation) == 8
