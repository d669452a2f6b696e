"""A grid of configurations: what words mean, which keys apply where, what directories are called and kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from conftest import ROOT, raises
from coterie.core.errors import CoterieError
from coterie.tools.experiments.grid import Grid, alone_of, outcome_of, plan, read_axes, split_values, state_of
from coterie.training.config import split_words
from coterie.training.execute import execute

QUICK = ("data.partition.clients=8", "local.epochs=1", "rounds=2")


def names(grid: Grid) -> list[str]:
    return list(dict.fromkeys(run.cell.name for run in grid.runs))


# ------------------------------------------------------------------------------------------- what is written


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("4", ["4"]),
        ("2,4, 8", ["2", "4", "8"]),
        ("[0,90]", ["[0,90]"]),
        ("[0,90],[0,180]", ["[0,90]", "[0,180]"]),
        ("{epochs: 1, batch: 2},{epochs: 2, batch: 2}", ["{epochs: 1, batch: 2}", "{epochs: 2, batch: 2}"]),
        ("'a,b',\"c,'d\"", ["'a,b'", '"c,\'d"']),
        ("[[1,2],[3]],x", ["[[1,2],[3]]", "x"]),
        ("", [""]),
    ],
)
def test_values_are_cut_at_commas_outside_brackets_and_quotes(text: str, values: list[str]) -> None:
    assert split_values("key", text) == values


@given(st.lists(st.lists(st.integers(0, 99), max_size=3), min_size=1, max_size=4))
def test_lists_stay_whole(lists: list[list[int]]) -> None:
    texts = [str(one) for one in lists]
    assert split_values("key", ",".join(texts)) == texts


def test_an_empty_value_is_refused() -> None:
    with raises("option-invalid", match=r"method: 'a,,b' has an empty value; write method=a,b"):
        split_values("method", "a,,b")


def test_short_words() -> None:
    axes = read_axes(["method.k=2,4", "seeds=3", "method=fedavg,ifca", "data.partition=iid", "method.k=2,2,3"])
    assert axes == {
        "method.name": ["fedavg", "ifca"],
        "data.partition.name": ["iid"],
        "seed": ["0", "1", "2"],
        "method.k": ["2", "3"],  # the later word wins, once each
    }
    assert list(axes)[:2] == ["method.name", "data.partition.name"]  # a name decides what the rest means


@pytest.mark.parametrize("words", [["seeds=0"], ["seeds=x"], ["seed=1.5"], ["seeds=2", "seed=1"], ["rounds"], ["=3"]])
def test_words_that_mean_nothing_are_refused(words: list[str]) -> None:
    with pytest.raises(CoterieError):
        plan(None, words)


# ------------------------------------------------------------------------------------------- combinations


def test_every_combination_with_every_seed() -> None:
    grid = plan(None, ["method=ifca,wecfl", "method.k=2,4", "participation=0.5,1.0", "seed=3,7"])
    found = [(r.config.method.name, r.config.method.params["k"], r.config.participation, r.seed) for r in grid.runs]
    wanted = {(m, k, p, s) for m in ("ifca", "wecfl") for k in (2, 4) for p in (0.5, 1.0) for s in (3, 7)}
    assert set(found) == wanted
    assert len(found) == 16
    assert [run.seed for run in grid.runs] == [3] * 8 + [7] * 8
    assert all(run.config.seed == run.seed for run in grid.runs)
    assert grid.notes == ()


def test_a_key_applies_where_the_method_has_it_and_it_is_said_once() -> None:
    grid = plan(None, ["method=fedavg,fedprox,wecfl", "method.k=2,4", "seeds=2"])
    assert names(grid) == ["fedavg", "fedprox", "wecfl,k2", "wecfl,k4"]  # fedavg is one cell, not two
    assert len(grid.runs) == 8
    assert grid.notes == ("method.k: left out for fedavg, fedprox, which has no such key",)
    ks = {run.config.method.name: run.config.method.params.get("k") for run in grid.runs}
    assert ks == {"fedavg": None, "fedprox": None, "wecfl": 4}


def test_of_a_method_around_a_method_the_inner_key_is_named() -> None:
    grid = plan(None, ["method=wecfl,fesem-cam", "method.k=2,4"])
    left = "method.k: left out for fesem-cam, which has no such key (fesem-cam has method.base.k)"
    assert grid.notes == (left,)
    with pytest.raises(CoterieError, match=r"method\.k: unknown key\. Did you mean 'method\.base\.k'"):
        plan(None, ["method=fesem-cam", "method.k=2"])


def test_the_same_for_models_and_partitions() -> None:
    grid = plan(None, ["data.partition=iid,dirichlet", "data.partition.alpha=0.1,1", "model=linear,mlp", *QUICK])
    assert len(grid.runs) == 2 * 3
    assert grid.notes == ("data.partition.alpha: left out for iid, which has no such key",)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["method=fedavg,wecfl", "method.kk=4"], "method.kk: unknown key"),
        (["method=fedavg", "method.k=4"], "method.k: unknown key"),
        (["method=fedavg,wecfll"], "unknown method 'wecfll'.*Did you mean 'wecfl'"),
        (["roundss=3"], "roundss: unknown key. Did you mean 'rounds'"),
        (["method=fedavg,wecfl", "method.k=-1,4"], r"method\.k"),
        (["local.lr=0.1,x"], r"local\.lr"),
    ],
)
def test_what_no_method_knows_is_an_error_before_anything_runs(words: list[str], said: str) -> None:
    with pytest.raises(CoterieError, match=said):
        plan(None, words)


def test_a_file_and_changes_to_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("method: {name: wecfl, k: 3}\nrounds: 7\nseed: 5\n", encoding="utf-8")
    grid = plan(file, ["method=fedavg,wecfl,ifca"])
    assert {run.config.rounds for run in grid.runs} == {7}
    assert [run.seed for run in grid.runs] == [5, 5, 5]
    assert [run.config.method.params for run in grid.runs] == [{}, {"k": 3}, {"k": 3}]


def test_directories_are_named_after_what_varies_and_never_alike() -> None:
    grid = plan(None, ["method=wecfl", "data.partition.angles=[0,90],[0,180]", "local.lr=0.1,1e-2", "rounds=2"])
    angles, rates = ("angles-0-90", "angles-0-180"), ("lr0.1", "lr1e-2")
    assert names(grid) == [f"wecfl,{angle},{rate}" for angle in angles for rate in rates]
    assert grid.runs[0].cell.title == "wecfl angles=[0,90] lr=0.1"
    assert not any("=" in name for name in names(grid))
    alike = plan(None, ["data.partition.angles=[0,90],[0 ,90]", "rounds=2"])
    assert len({run.cell.name for run in alike.runs}) == 2
    clash = plan(None, ["method=wecfl", "data.partition=dirichlet", "data.partition.alpha=1,2", "method.alpha=1,2"])
    assert names(clash)[0] == "wecfl,data.partition.alpha1,method.alpha1"


# ------------------------------------------------------------------------------------------- directories


def test_finished_begun_new_and_somebody_elses(tmp_path: Path) -> None:
    (run,) = plan(None, [*QUICK, "method=wecfl", "method.k=2"]).runs
    assert run.path(tmp_path) == tmp_path / "wecfl" / "seed-0"
    assert state_of(run, tmp_path) == "new"
    result = execute(run.config, run.path(tmp_path))
    assert state_of(run, tmp_path) == "finished"
    outcome = outcome_of(run, tmp_path)
    assert outcome.summary == result.summary
    assert outcome.seconds > 0
    (run.path(tmp_path) / "clients.json").unlink()
    assert state_of(run, tmp_path) == "begun"
    (other,) = plan(None, [*QUICK, "method=wecfl", "method.k=3"]).runs
    with raises("run-mismatch", match=r"wecfl/seed-0: holds .*method\.k is 2 there and 3 here.*another --out"):
        state_of(other, tmp_path)
    (same,) = plan(None, [*QUICK, "method=wecfl", "method.k=2", "checkpoint_every=1"]).runs
    assert state_of(same, tmp_path) == "begun"


def test_auto_is_what_it_came_to(tmp_path: Path) -> None:
    (run,) = plan(None, [*QUICK, "engine=auto"]).runs
    path = run.path(tmp_path)
    path.mkdir(parents=True)
    there = run.tree | {"engine": {"name": "batched", "workers": 1}}
    (path / "config.yaml").write_text(yaml.safe_dump(there), encoding="utf-8")
    assert state_of(run, tmp_path) == "begun"
    (named,) = plan(None, [*QUICK, "engine=sequential"]).runs
    with raises("run-mismatch"):
        state_of(named, tmp_path)


def test_a_run_is_compared_with_its_clients_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the run of the method `local` (here another one stands for it) of the same seed and settings."""
    monkeypatch.setattr("coterie.tools.experiments.grid.LOCAL", "fedavg")
    grid = plan(None, [*QUICK, "method=fedavg,wecfl", "method.k=2", "rounds=1,2", "seeds=2"])
    (mine,) = [r for r in grid.runs if (r.config.method.name, r.config.rounds, r.seed) == ("wecfl", 1, 1)]
    alone = alone_of(mine, grid.runs)
    assert alone is not None
    assert (alone.config.method.name, alone.config.rounds, alone.seed) == ("fedavg", 1, 1)
    assert alone_of(alone, grid.runs) is None
    assert alone_of(mine, [mine]) is None
    for run in (mine, alone):
        execute(run.config, run.path(tmp_path))
    against = outcome_of(mine, tmp_path, alone).against
    assert against is not None
    scores = [
        {row["client"]: row["accuracy"] for row in json.loads((run.path(tmp_path) / "clients.json").read_text())}
        for run in (mine, alone)
    ]
    apart = [scores[0][client] - scores[1][client] for client in scores[0]]
    assert against.gain == pytest.approx(sum(apart) / len(apart))
    assert against.worse == pytest.approx(sum(a < 0 for a in apart) / len(apart))
    assert outcome_of(mine, tmp_path).against is None


def test_newcomers_are_part_of_the_end(tmp_path: Path) -> None:
    (run,) = plan(None, [*QUICK, "newcomers=0.25"]).runs
    execute(run.config, run.path(tmp_path))
    assert state_of(run, tmp_path) == "finished"
    (run.path(tmp_path) / "newcomers.json").unlink()
    assert state_of(run, tmp_path) == "begun"


# ------------------------------------------------------------------------------------------- the documentation


def test_the_documented_comparisons_can_be_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.yaml").write_text("rounds: 2\n", encoding="utf-8")
    page = (ROOT / "docs" / "compare.md").read_text(encoding="utf-8")
    lines = [line.split() for line in page.splitlines() if line.startswith("coterie compare ")]
    assert len(lines) == 2
    for line in lines:
        words = [word for word in line[2:] if "=" in word or word.endswith(".yaml")]
        assert len(plan(*split_words(words)).runs) == (9 if "my.yaml" not in line else 4)


def test_brackets_inside_quotes_are_letters() -> None:
    assert split_values("model.name", "'a[',b") == ["'a['", "b"]
    assert split_values("model.hidden", "[8,4],[16]") == ["[8,4]", "[16]"]
