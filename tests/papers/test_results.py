"""Outcomes on disk: written whole, read back, never taken for those of another configuration."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from conftest import raises
from coterie.core.metrics import Summary
from coterie.methods.wecfl import WeCFL
from coterie.training.build import build
from coterie.training.events import RoundDone
from papers.cell import Cell, Outcome, Run, Table, Tree, last
from papers.results import Results, _short, configured, fingerprint, outcome_of, stale

CONFIG: Tree = {
    "data": {"name": "digits", "partition": {"name": "rotated", "clients": 8}},
    "model": {"name": "linear"},
    "method": {"name": "wecfl", "k": 2},
    "local": {"epochs": 1, "batch": 8, "lr": 0.1},
    "rounds": 2,
}
RUN = Run("some/run", CONFIG)
# WeCFL as the paper has it, under the name that has more options.
WECFL: Tree = {"name": "wecfl-authors", "k": 2, "features": "classifier", "kmeans": "warm"}


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
    assert made.config["seed"] == 3
    assert made.config["method"]["k"] == 2
    assert made.command == "python -m papers --run some/run --seed 3"
    assert made.fingerprint == fingerprint(RUN)
    assert "platform" not in made.versions
    assert {"coterie", "torch", "python"} <= set(made.versions)


def test_a_methods_revision_makes_earlier_outcomes_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(RUN)
    monkeypatch.setattr(WeCFL, "revision", 0, raising=False)
    assert fingerprint(RUN) == before
    monkeypatch.setattr(WeCFL, "revision", 1)
    once = fingerprint(RUN)
    assert once != before
    monkeypatch.setattr(WeCFL, "revision", 2)
    assert fingerprint(RUN) not in (before, once)


def test_the_revision_of_a_wrapped_method_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    wrapped = changed(method={"name": "wecfl-cam", "base": {"k": 2}})
    before = fingerprint(wrapped)
    monkeypatch.setattr(WeCFL, "revision", 1, raising=False)
    assert fingerprint(wrapped) != before


def test_a_variant_under_a_new_name_keeps_its_outcomes_and_the_old_name_does_not_pass_for_it() -> None:
    """The outcomes kept with CAM's local warm-up are those of what is now called local_unclustered."""
    base = {"name": "fesem", "k": 2, "kmeans_weights": "equal"}
    wrapped = {"name": "cam-authors", "base": base, "order": "global_first"}
    kept = fingerprint(changed(method=wrapped | {"warmup_by": "local_unclustered"}))
    assert kept == "8c0be260e2dd4735"  # of before the new name
    assert fingerprint(changed(method=wrapped | {"warmup_by": "local"})) != kept
    assert fingerprint(changed(method={"name": "ifca-cam", "base": {"k": 2}})) == "20e117d2bfa1bb05"  # not concerned


@pytest.mark.parametrize(
    ("method", "kept"),  # the fingerprint that 0.1 gave to the method with an option
    [
        (WECFL, "RUN"),
        (WECFL | {"size_unit": "batches"}, "2ce3e7f79f9ac548"),
        ({"name": "ifca-authors", "k": 2, "choose_by": "accuracy"}, "96638e939db3a609"),
        ({"name": "fedgroup-rcc", "k": 2, "cold_start": "on_selection"}, "b00e1dba27b4a9ac"),
        ({"name": "fedgroup-rac", "k": 2, "cold_start": "on_selection", "mu": 0.5}, "622b1f080867d953"),
        ({"name": "cam-without-global", "base": {"name": "ifca", "k": 2}}, "99fbe9aafa90f287"),
        (
            {
                "name": "stocfl-authors",
                "cluster_vector": "all_members",
                "merge_model": "mean",
                "new_cluster": "anchor",
                "weights": "size",
            },
            "cd3a29149484f92e",
        ),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else "",
)
def test_a_variant_of_its_own_keeps_the_outcomes_of_the_option_it_was(method: Tree, kept: str) -> None:
    assert fingerprint(changed(method=method)) == (fingerprint(RUN) if kept == "RUN" else kept)


def test_save_and_load(tmp_path: Path) -> None:
    results = Results(tmp_path)
    place = results.save(outcome(), RUN)
    assert place == tmp_path / "some" / "run" / "seed-0.json"
    assert [p.name for p in place.parent.iterdir()] == ["seed-0.json"]  # nothing half written beside it
    found = results.load(RUN, 0)
    assert found is not None
    assert found.curve["accuracy"] == [0.5, 0.666667]
    assert found.curve["loss"] == [0.123457] * 2
    assert found.curve["sizes"] == [[3, 5], [3, 5]]
    assert found.curve["round"] == [1, 2]
    assert found.probe == {"clusters": 0.333333, "each": [0.1, 0.2]}
    assert dataclasses.replace(found, curve={}, probe={}) == dataclasses.replace(outcome(), curve={}, probe={})
    again = results.save(found, RUN).read_bytes()
    assert again == place.read_bytes()


def test_nothing_there(tmp_path: Path) -> None:
    results = Results(tmp_path / "nowhere")
    assert results.load(RUN, 0) is None
    assert results.of(RUN) == []
    assert results.found(Cell("r", "c", RUN, last(), 1.0)) is None


def test_seeds_are_pooled_in_order(tmp_path: Path) -> None:
    results = Results(tmp_path)
    for seed in (10, 2, 0):
        results.save(outcome(seed), RUN)
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
        changed(method=WECFL | {"size_unit": "batches"}),
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
    results.save(outcome(), RUN)
    assert fingerprint(other) != fingerprint(RUN)
    assert results.load(other, 0) is None
    assert results.of(other) == []
    assert results.load(RUN, 0) is not None


def test_an_option_that_came_later_matters_only_where_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outcomes of before it do not become stale: at this value it changes nothing."""
    before = fingerprint(RUN)
    assert fingerprint(changed(method=WECFL | {"size_unit": "samples"})) == before
    monkeypatch.setattr("papers.results.LATER", {})
    assert fingerprint(RUN) != before


def test_how_newcomers_join_matters_only_where_some_come() -> None:
    """With everyone in every round nobody is new; elsewhere the outcomes of before are those of join="nearest"."""
    before = fingerprint(RUN)
    loss, nearest = (WECFL | {"join": join} for join in ("loss", "nearest"))
    assert {fingerprint(changed(method=method)) for method in (loss, nearest)} == {before}
    for few in ({"participation": 0.5}, {"newcomers": 0.5}, {"dropout": 0.1}):
        one, other = (fingerprint(changed(method=method, **few)) for method in (loss, nearest))
        assert one != other
        assert one == fingerprint(changed(method={"name": "wecfl", "k": 2}, **few))


def test_how_fast_it_is_computed_does_not_matter() -> None:
    same = [
        changed(engine={"name": "batched", "workers": 1}),
        changed(checkpoint_every=50),
        changed(method={"name": "wecfl", "k": 2, "kmeans_weights": "size"}),  # a default spelled out
        Run("another/name", CONFIG),
    ]
    assert {fingerprint(run) for run in same} == {fingerprint(RUN)}


def test_stale_outcomes_are_found(tmp_path: Path) -> None:
    results = Results(tmp_path)
    known = results.save(outcome(), RUN)
    old = results.save(outcome(1, fingerprint="of another time"), RUN)
    unknown = results.save(outcome(), Run("gone/run", CONFIG))
    table = Table("t", "", "", "", (Cell("r", "c", RUN, last(), None),), 1.0)
    assert stale(results, [table]) == [unknown, old]
    assert known.is_file()
    assert stale(results, []) == [unknown, known, old]


# ---------------------------------------------------------------------------------------------- what is broken


@pytest.mark.parametrize("text", ["", "{", "[]", "[1, 2]", "null", "3", '"text"', "{}", '{"run": "a"}', '{"odd": 1}'])
def test_garbage_is_told(text: str, tmp_path: Path) -> None:
    results = Results(tmp_path)
    place = results.place(RUN, 0)
    place.parent.mkdir(parents=True)
    place.write_text(text)
    with raises("run-damaged", match=r"seed-0\.json: not an outcome .* delete it"):
        results.load(RUN, 0)


def test_bytes_that_are_no_text_are_told(tmp_path: Path) -> None:
    place = Results(tmp_path).place(RUN, 0)
    place.parent.mkdir(parents=True)
    place.write_bytes(b"\xff\xfe\x00")
    with raises("run-damaged"):
        Results(tmp_path).load(RUN, 0)


def test_an_unknown_column_too_many_is_told(tmp_path: Path) -> None:
    results = Results(tmp_path)
    place = results.save(outcome(), RUN)
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
    text = Results(tmp_path).save(made, RUN).read_text()
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
    assert config.data.params == {"path": "mine.npz", "client": "owner"}
    assert config.data.partition is not None
    assert config.data.partition.name == "rotated"
    assert configured(RUN, 0, {"mnist": {"name": "npz", "path": "x"}}).data.name == "digits"


def test_a_configuration_can_be_built() -> None:
    job = build(configured(RUN, 0))
    assert len(job.federation) == 8
