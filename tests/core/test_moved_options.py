"""Options that belong to a method of their own now: errors that name it, and configurations of 0.1 that still read."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

import coterie
from conftest import raises
from coterie import CoterieError
from coterie.core.earlier_runs import CLASSES, NAMES, todays_description, todays_method
from coterie.core.moved_options import HOMES, OPTIONS, PRESETS
from coterie.core.registry import METHODS, NO_CODE
from coterie.training.build import build_method
from coterie.training.config import read

CASES = [
    ("stocfl", "global_update=chain", "an option of 'stocfl-authors'; write method.name=stocfl-authors"),
    ("wecfl", "kmeans=fresh", "an option of 'wecfl-authors'; write method.name=wecfl-authors"),
    ("fesem", "join=loss", "an option of 'fesem-authors'; write method.name=fesem-authors"),
    ("fedgroup", "grouping=rcc", "'rcc' is now 'fedgroup-rcc'; write method.name=fedgroup-rcc"),
    ("fedgrouprox", "cold_start=all_before", "an option of 'fedgrouprox-authors'; write method.name="),
    ("fesem-cam", "order=global_first", "'cam-authors'; write method.name=cam-authors method.base.name=fesem"),
    ("wecfl-cam", "warmup_by=local_unclustered", "write method.name=cam-authors method.base.name=wecfl"),
    ("fesem-cam", "base.kmeans=fresh", "an option of 'fesem-authors'; write method.base.name=fesem-authors"),
]


@pytest.mark.parametrize(("name", "word", "said"), CASES)
def test_an_option_that_moved_names_its_method(name: str, word: str, said: str) -> None:
    with pytest.raises(CoterieError) as caught:
        build_method(read(None, [f"method.name={name}", f"method.{word}"]))
    key = word.partition("=")[0]
    assert str(caught.value).startswith(f"method.{key}: ")
    assert said in str(caught.value)


def test_a_wrapper_takes_a_variant_of_the_method_it_wraps() -> None:
    words = ["method.name=fesem-cam", "method.base.name=fesem-authors", "method.base.k=3"]
    made: Any = build_method(read(None, words))
    assert (type(made.base), made.base.k, made.base.kmeans) == (coterie.FeSEMAuthors, 3, "fresh")
    with raises("config-invalid-value", match=r"method\.base\.name: .*method\.name=c"):
        build_method(read(None, ["method.name=fesem-cam", "method.base.name=ifca"]))


def test_a_file_that_a_user_writes_is_told_the_same(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("method: {name: ifca, choose_by: accuracy}")
    with raises("config-unknown-key", match=r"method\.choose_by: .*write method\.name=ifca-aut"):
        build_method(read(tmp_path / "mine.yaml"))


def test_so_is_a_constructor() -> None:
    with raises("argument-unknown"):
        coterie.StoCFL(merge_model="larger")  # type: ignore[call-arg]
    with raises("argument-invalid", match=r"FedGroup.grouping: 'rac' is now FedGroupRAC; write coterie.FedGroupRAC"):
        coterie.FedGroup(grouping="rac")  # type: ignore[arg-type]
    with raises("argument-invalid", match=r"grouping: must be 'edc' or 'madc' \(got 'ward'\)"):
        coterie.FedGroup(grouping="ward")  # type: ignore[arg-type]


def test_a_number_of_clusters_for_the_method_that_measures_it_names_one_that_takes_it() -> None:
    with raises("config-unknown-key", match=r"method\.k: .*Halves measures .* write method\.name=wecfl method\.k=4$"):
        build_method(read(None, ["method.k=4"]))
    with raises("argument-unknown", match=r"Halves\.k: .*Halves measures .* write coterie\.WeCFL\(k=3\)$"):
        coterie.Halves(k=3)  # type: ignore[call-arg]


def test_what_is_advised_can_be_written() -> None:
    for kind, options in OPTIONS.items():
        fields = {field.name for field in dataclasses.fields(METHODS.find(NAMES[kind], NO_CODE))}
        assert {key for key, moved in options.items() if not moved.gone} <= fields
        assert not {key for key, moved in options.items() if moved.gone} & fields
        for key, moved in options.items():
            if isinstance(moved.to, str) and moved.to != "cam-without-global":
                assert key in {field.name for field in dataclasses.fields(METHODS.find(moved.to, NO_CODE))}
    for name, kind in HOMES.items():
        assert CLASSES[name] == kind
        assert getattr(coterie, kind) is METHODS.find(name, NO_CODE)
    for kind, base in PRESETS.items():
        assert type(METHODS.find(NAMES[kind], NO_CODE)().base) is METHODS.find(base, NO_CODE)


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ({"name": "stocfl", "tau": 0.5, "global_update": "parallel"}, {"name": "stocfl", "tau": 0.5}),
        ({"name": "wecfl", "kmeans": "fresh", "k": 3}, {"name": "wecfl-authors", "kmeans": "fresh", "k": 3}),
        (
            {"name": "fedgroup", "grouping": "madc", "cold_start": "on_selection"},
            {"name": "fedgroup", "grouping": "madc"},
        ),
        (
            {"name": "fedgrouprox", "grouping": "rcc", "cold_start": "all_before", "mu": 1.0},
            {"name": "fedgroup-rcc", "cold_start": "all_before", "mu": 1.0},
        ),
        (
            {"name": "fesem-cam", "order": "simultaneous", "without_global": False, "base": {"kmeans": "fresh"}},
            {"name": "fesem-cam", "base": {"kmeans": "fresh", "name": "fesem-authors"}},
        ),
        (
            {"name": "fesem-cam", "order": "global_first", "without_global": False, "base": {"kmeans": "warm", "k": 2}},
            {"name": "cam-authors", "order": "global_first", "base": {"name": "fesem", "k": 2}},
        ),
        (
            {"name": "cam", "without_global": True, "order": "simultaneous", "base": {"name": "ifca"}},
            {"name": "cam-without-global", "base": {"name": "ifca"}},
        ),
        ({"name": "mine:Method", "join": "nearest"}, {"name": "mine:Method", "join": "nearest"}),
    ],
)
def test_a_configuration_of_0_1(then: dict[str, Any], now: dict[str, Any]) -> None:
    assert todays_method(then) == now


def test_only_a_runs_own_configuration_is_translated(tmp_path: Path) -> None:
    tree = read(None, ["method.name=stocfl"]).dump() | {"method": {"name": "stocfl", "merge_model": "larger"}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(tree))
    assert read(tmp_path / "config.yaml").method.name == "stocfl"  # a user's, which will be refused
    (tmp_path / "run.json").write_text("{}")
    assert read(tmp_path / "config.yaml").method.name == "stocfl-authors"


def test_what_python_cannot_read_stays_as_it_is() -> None:
    for text in ("7850 numbers, cross_entropy, network 0a1b", "Mine(x=<object at 0x1>)"):
        assert todays_description(text) == text
