"""`coterie compare` as its users meet it, and what a terminal shows of runs."""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path
from typing import Any

import commandline
import numpy as np
import pytest
import torch
from filelock import FileLock
from rich.console import Console

from coterie.core.metrics import AgainstLocal, Summary
from coterie.core.tasks import Evaluated
from coterie.tools.cli import compare, console
from coterie.tools.cli.compare import Compared, Comparison, Conclusion, spreads
from coterie.tools.experiments import runner
from coterie.tools.experiments.grid import Outcome
from coterie.tools.report.record import read_run
from coterie.training.config import read
from coterie.training.events import RoundDone, RunStarted, Snapshot
from coterie.training.execute import execute
from coterie.training.score_text import cluster_scores

GRID = (*commandline.QUICK, "method=fedavg,wecfl", "method.k=2", "seeds=2")


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> commandline.Shell:
    return commandline.Shell(tmp_path, monkeypatch, capsys)


def alone(words: list[str], path: Path) -> Path:
    """The same run without a grid around it."""
    execute(read(None, [*commandline.QUICK, *words]), path)
    return path


# ------------------------------------------------------------------------------------------- the command


@pytest.mark.exhaustive
def test_a_grid_is_run_kept_resumed_and_compared(shell: commandline.Shell, tmp_path: Path) -> None:
    said = shell("compare", *GRID, "--out", "g", "--jobs", "2", "--json")
    assert said.code == 0, said.err
    assert said.err == ""
    found = commandline.strictly(said.out)
    assert [cell["name"] for cell in found["cells"]] == ["fedavg", "wecfl"]
    assert found["failed"] == []
    for cell in found["cells"]:
        scores = [run["accuracy"] for run in cell["runs"]]
        assert [run["seed"] for run in cell["runs"]] == [0, 1]
        assert cell["mean"]["accuracy"] == pytest.approx(np.mean(scores))
        assert cell["std"]["accuracy"] == pytest.approx(np.std(scores, ddof=1))
    assert Path(found["report"]).read_text(encoding="utf-8").count("wecfl") > 1
    commandline.assert_same_run(
        tmp_path / "g/wecfl/seed-1", alone(["method=wecfl", "method.k=2", "seed=1"], tmp_path / "alone")
    )

    # Again: what is finished is kept as it is, what was stopped goes on to the same bits, what is gone is run anew.
    kept, stopped, gone = (tmp_path / "g" / name for name in ("wecfl/seed-1", "wecfl/seed-0", "fedavg/seed-0"))
    whole = shutil.copytree(stopped, tmp_path / "whole")
    (stopped / "clients.json").unlink()
    shutil.rmtree(gone)
    before = {file: file.stat().st_mtime_ns for file in kept.rglob("*")}
    said = shell("compare", *GRID, "--out", "g")
    assert said.code == 0, said.err
    assert "4 runs in g: 2 finished already, 1 to go on with, 1 to start" in said.err
    assert "method.k: left out for fedavg" in said.err
    assert said.err.count("left out") == 1
    assert "fedavg seed 0: done" in said.err
    assert "left)" in said.err or "2/2" in said.err
    assert before == {file: file.stat().st_mtime_ns for file in kept.rglob("*")}
    commandline.assert_same_run(stopped, whole)
    assert gone.is_dir()
    assert "±" in said.out
    assert "report: g/report.html" in said.out

    # Another configuration in the same place.
    said = shell("compare", *GRID, "method.k=3", "--out", "g")
    assert said.code == 2
    assert "g/wecfl/seed-0: holds a run of another configuration (method.k is 2 there and 3 here)" in said.err


BROKEN = """
from coterie import FedAvg
from dataclasses import dataclass

@dataclass(frozen=True)
class Broken(FedAvg):
    wrong: int = 0

    def round(self, state, cohort, ask):
        if self.wrong:
            raise ValueError("nobody can [do] this")
        return super().round(state, cohort, ask)
"""


def test_a_failing_run_does_not_stop_the_others(shell: commandline.Shell, tmp_path: Path) -> None:
    shell.module(BROKEN, "mine")
    said = shell("compare", *commandline.QUICK, "method=mine:Broken", "method.wrong=1,0", "--jobs", "1", "--json")
    assert said.code == 1
    found = commandline.strictly(said.out)
    assert found["out"] == "runs/compare-1"
    bad, good = found["cells"]
    assert (bad["name"], bad["runs"], bad["mean"]) == ("mine:Broken wrong=1", [], {})
    assert good["name"] == "mine:Broken wrong=0"
    assert len(good["runs"]) == 1
    (failed,) = found["failed"]
    assert failed["run_dir"] == "runs/compare-1/mine-Broken,wrong1/seed-0"
    assert "nobody can [do] this" in failed["why"]
    assert "failed: runs/compare-1/mine-Broken,wrong1/seed-0: " in said.err
    # The report has both: what failed is a row of the ranking and of the runs, with its reason.
    page = Path(shell.cwd / found["report"]).read_text(encoding="utf-8")
    assert "2 runs, 2 configurations, 1 failed" in page
    assert ">failed: ValueError: nobody can [do] this" in page
    assert page.count('<span class="status failed">failed</span>') >= 2


def test_a_report_is_written_though_all_runs_failed_before_they_began(
    shell: commandline.Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(runs: Any, *_: Any) -> list[Any]:
        return [runner.Failed(run, "visits.csv: <b>cannot</b> be read") for run in runs]

    monkeypatch.setattr(compare, "carry_out", fail)
    words = [*commandline.QUICK, "method=wecfl", "seeds=2", "--out", "g"]
    said = shell("compare", *words, "--json")
    assert said.code == 1, said.err
    assert len(commandline.strictly(said.out)["failed"]) == 2
    page = (shell.cwd / "g" / "report.html").read_text(encoding="utf-8")
    assert "2 runs, 1 configuration, 2 failed" in page
    assert ">failed: visits.csv: &lt;b&gt;cannot&lt;/b&gt; be read</td>" in page
    record = read_run(shell.cwd / "g" / "wecfl" / "seed-1")
    assert (record.status, record.problem) == ("failed", "visits.csv: <b>cannot</b> be read")
    assert "2 to go on with" in shell("compare", *words).err  # the directories are no obstacle to another try


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["method=fedavg,wecfl", "method.kk=2"], "method.kk: unknown key"),
        (["seeds=none"], "seeds: 'none' is not a whole number"),
        (["nothing.yaml", "seeds=2"], "nothing.yaml: cannot be read"),
    ],
)
def test_mistakes_are_told_before_anything_is_written(words: list[str], said: str, shell: commandline.Shell) -> None:
    found = shell("compare", *words)
    assert found.code == 2
    assert said in found.err
    assert not list(shell.cwd.iterdir())


def test_without_plotly_there_is_a_table_and_a_word(shell: commandline.Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    alone([], shell.cwd / "g" / "wecfl" / "seed-0")
    for name in [name for name in sys.modules if name.split(".")[0] == "plotly"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "plotly", None)
    said = shell("compare", *commandline.QUICK, "--out", "g")
    assert said.code == 0, said.err
    assert "no report: " in said.err
    assert "pip install 'coterie[report]'" in said.err
    assert "wecfl" in said.out
    assert not (shell.cwd / "g" / "report.html").exists()


def test_an_interrupt_says_how_to_go_on(shell: commandline.Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> list[Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr(compare, "carry_out", interrupted)
    said = shell("compare", *commandline.QUICK, "data.partition.angles=[0,90]", "seeds=2", "--out", "here")
    assert said.code == 130
    assert "go on with: coterie compare " in said.err
    assert "'data.partition.angles=[0,90]' seeds=2 --out here" in said.err


def test_two_comparisons_do_not_work_in_one_place(shell: commandline.Shell) -> None:
    (shell.cwd / "here").mkdir()
    with FileLock(shell.cwd / "here" / ".lock"):
        said = shell("compare", *commandline.QUICK, "--out", "here")
    assert said.code == 2
    assert "here: another comparison is at work there" in said.err


# ------------------------------------------------------------------------------------------- the tables


def outcome(seed: int, accuracy: float | None, clusters: int = 4, loss: float = 0.5) -> Outcome:
    summary = Summary(loss, accuracy, accuracy, clusters, (5, 5), ari=None, nmi=None)
    return Outcome(seed, Path("x"), summary, 2.0)


def drawn(what: Any, **settings: Any) -> str:
    out = io.StringIO()
    Console(file=out, **({"width": 120} | settings)).print(what)
    return out.getvalue()


def test_the_comparison_has_means_deviations_and_the_best_in_bold() -> None:
    rows = [
        Compared("a [x]", 2, (outcome(0, 0.5), outcome(1, 0.7))),
        Compared("b", 2, (outcome(0, 0.9, 3), outcome(1, 0.9, 4))),
        Compared("c", 2, (outcome(0, 0.8),)),
        Compared("d", 2, ()),
    ]
    text = drawn(Comparison(rows))
    lines = {line.split()[0]: line for line in reversed(text.splitlines()) if line.split()}
    assert "60.0 ± 14.1" in lines["a"]
    assert "a [x]" in lines["a"]
    assert "3.5 ± 0.7" in lines["b"]
    assert " 4 " in lines["a"]  # the same number of clusters with every seed is a number
    assert "80.0 " in lines["c"]
    assert "1 of 2" in lines["c"]
    assert "0 of 2" in lines["d"]
    bold = drawn(Comparison(rows), force_terminal=True, color_system="standard")
    assert "\x1b[1m90.0 ± 0.0" in bold
    assert "\x1b[1m60.0" not in bold
    assert "loss" not in text


def test_regression_is_compared_by_loss_and_less_is_better() -> None:
    rows = [Compared("a", 1, (outcome(0, None, loss=0.25),)), Compared("b", 1, (outcome(0, None),))]
    text = drawn(Comparison(rows), force_terminal=True, color_system="standard")
    assert "\x1b[1m0.2500" in text
    assert "accuracy" not in text


def regression(name: str, *losses: float, constant: float = 60.0) -> Compared:
    outcomes = [
        Outcome(
            seed,
            Path("x"),
            Summary(
                *(loss, None, None, 4, (5, 5)),
                *(None, None),
                rmse=loss**0.5,
                mae=1.0,
                r2=1 - loss / constant,
                constant=constant,
                worst_decile=2 * loss,
            ),
            2.0,
        )
        for seed, loss in enumerate(losses)
    ]
    return Compared(name, len(losses), tuple(outcomes))


def test_at_80_columns_names_of_regressions_are_whole_and_digits_tell_them_apart() -> None:
    rows = [regression("fesem-cam k=4 participation=0.1", 1.12, 1.08, 1.1), regression("wecfl", 1.8, 1.82, 1.78)]
    text = drawn(Comparison(rows), width=80)
    assert text.count("fesem-cam k=4 participation=0.1 ") >= 2  # in every table, in one piece
    assert max(map(len, text.splitlines())) <= 80
    assert "1.100 ± 0.020" in text
    assert "0.982" in text  # R2: two digits of what is left to 1
    assert "0.970" in text
    assert "ARI" not in text  # nobody knows of hidden groups
    assert "constant  " not in text
    assert "loss of a constant prediction: 60" in text
    large = drawn(Comparison([regression("a", 143412.5), regression("b", 227212.25)]), width=80)
    assert "143412 " in large
    assert "0.5 ± " not in large


def test_large_and_vanishing_numbers_stay_short() -> None:
    text = drawn(Comparison([regression("a", 1e71), regression("b", 3.0), regression("c", 1e-9)]), width=120)
    assert "1e+71" in text
    assert "3.000" in text
    assert "1e-09" in text


def said(*rows: tuple[str, list[float]]) -> Conclusion:
    return Conclusion.of(
        [Compared(name, len(v), tuple(outcome(seed, one) for seed, one in enumerate(v))) for name, v in rows]
    )


def test_it_ends_with_a_conclusion() -> None:
    """Paired by seed, differences of -0.1, 0.2 and 0 points are within noise; of 2, 2.1 and 2.1 they are not."""
    found = said(("halves", [0.92, 0.93, 0.91]), ("ditto", [0.921, 0.928, 0.91]), ("local", [0.90, 0.909, 0.889]))
    wanted = "halves and ditto are within noise of each other; local is 2.1 points worse (p < 0.001)."
    assert found.words == wanted
    assert (found.best, found.as_good) == (0, frozenset({1}))
    text = drawn(
        Comparison(
            [
                Compared(n, 3, tuple(outcome(i, v) for i, v in enumerate(vs)))
                for n, vs in (
                    ("halves", [0.92, 0.93, 0.91]),
                    ("ditto", [0.921, 0.928, 0.91]),
                    ("local", [0.90, 0.909, 0.889]),
                )
            ]
        ),
        width=80,
    )
    assert "ditto ≈" in text
    assert "local ≈" not in text
    assert "≈ within noise of the best" in text


def test_of_few_seeds_it_says_that_nothing_can_be_told() -> None:
    found = said(("a", [0.9, 0.91]), ("b", [0.8, 0.81]))
    few = "whether that is more than noise takes 3 seeds or more (seeds=3)."
    assert found.words == f"a is best by accuracy; b is 10.0 points worse; {few}"
    assert found.as_good == frozenset()
    assert said(("a", [0.9])).words == ""


def test_losses_are_concluded_by_shares() -> None:
    found = Conclusion.of([regression("a", 2.0, 2.1, 1.9), regression("b", 1.0, 1.05, 0.95)])
    assert found.words.startswith("b is best by loss; the loss of a is 100 % higher (p < 0.001)")


def test_a_diverged_seed_is_not_averaged() -> None:
    row = Compared("a", 2, (outcome(0, 0.5, loss=float("nan")), outcome(1, None)))
    assert set(spreads(row)) == {"clusters", "seconds"}


def fair(seed: int, worst: float, against: AgainstLocal | None, accuracy: float | None = 0.5) -> Outcome:
    summary = Summary(0.5, accuracy, accuracy, 4, (5, 5), ari=None, nmi=None, worst_decile=worst)
    return Outcome(seed, Path("x"), summary, 2.0, against=against)


def test_the_worst_clients_and_gains_over_local_have_columns() -> None:
    rows = [
        Compared("wecfl", 2, (fair(0, 0.2, AgainstLocal(0.03, 0.25, 40)), fair(1, 0.4, AgainstLocal(0.05, 0.15, 40)))),
        Compared("local", 2, (fair(0, 0.1, None), fair(1, 0.1, None))),
    ]
    lines = {
        line.split()[0]: line for line in reversed(drawn(Comparison(rows), width=200).splitlines()) if line.split()
    }
    assert all(title in lines["run"] for title in ("worst 10 %", "gain", "worse %"))
    assert all(value in lines["wecfl"] for value in ("30.0 ± 14.1", "4.0 ± 1.4", "20.0 ± 7.1"))
    assert lines["local"].count(" - ") >= 2
    assert "needs a run" not in " ".join(lines.values())


def test_without_local_a_hint_says_what_is_missing() -> None:
    rows = [Compared("wecfl", 1, (fair(0, 0.2, None),))]
    for width in (80, 200):
        text = drawn(Comparison(rows), width=width)
        assert "worse %" not in text
        assert "…" not in text
        assert "method=...,local" in " ".join(text.split())


def test_of_regressions_the_worst_clients_have_the_largest_loss() -> None:
    rows = [
        Compared("a", 1, (fair(0, 12345.0, AgainstLocal(0.25, 0.5, 4), None),)),
        Compared("b", 1, (fair(0, 2.0, AgainstLocal(0.5, 0.5, 4), None),)),
    ]
    text = drawn(Comparison(rows), width=200, force_terminal=True, color_system="standard")
    assert "\x1b[1m2.000\x1b" in text
    assert "\x1b[1m0.5000" in text


# ------------------------------------------------------------------------------------------- while a run goes on


def evaluated(choice: list[int], accuracy: list[float], n: list[int]) -> Evaluated:
    scores = torch.tensor(accuracy)
    return Evaluated(torch.arange(len(n)), torch.tensor(n), scores, scores, scores, torch.tensor(choice))


def test_clusters_are_scored_by_their_test_samples() -> None:
    found = cluster_scores(evaluated([2, 0, 2, 5], [0.5, 1.0, 0.8, float("nan")], [10, 5, 20, 0]))
    assert [(row.cluster, row.clients) for row in found] == [(0, 1), (2, 2), (5, 1)]
    assert found[0].accuracy == 1.0
    assert found[1].accuracy == pytest.approx((0.5 * 10 + 0.8 * 20) / 30)
    assert found[1].client_accuracy == pytest.approx((0.5 + 0.8) / 2)
    assert found[2].client_loss is None
    assert found[2].accuracy is None


def test_the_live_table_shows_the_largest_clusters() -> None:
    choice = [k for k in range(15) for _ in range(15 - k if k else 1)]  # cluster 0 is the smallest
    many = len(choice)
    text = drawn(console.live_clusters(evaluated(choice, [0.5] * many, [1] * many), 10))
    shown = [line.split()[0] for line in text.splitlines()]
    assert shown == ["cluster", *map(str, range(1, 11)), "5"]
    assert text.splitlines()[-1].split() == ["5", "more", str(many - sum(15 - k for k in range(1, 11)))]
    assert console.live_clusters(evaluated([0], [1.0], [1]), 0) is None


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_goes_on_only_in_a_terminal_and_ends_as_one_line(terminal: bool) -> None:
    out = io.StringIO()
    place = Console(file=out, force_terminal=terminal, width=120, height=40)
    with console.progress(place, "wecfl") as listen:
        listen(RunStarted("WeCFL", "data", 8, 8, 2, 0))
        fresh = Snapshot(evaluated([0, 1], [0.5, 1.0], [1, 1]), None, None)
        for round_ in (1, 2):
            summary = Summary(0.5, 0.75, 0.75, 2, (1, 1), None, None)
            listen(RoundDone(round_, 2, 2, (), 1, 0.1, summary, fresh=fresh))
    text = out.getvalue()
    if not terminal:
        assert text == ""
        return
    last = text.rsplit("\x1b[2K", 1)[-1]
    assert "2/2" in last
    assert "accuracy 75.0%" in last
    assert "rounds/s" in last
    assert "clients" not in last  # the table of clusters is gone


def test_the_time_left() -> None:
    pace = console.Pace(10, 4)
    assert str(pace) == ""
    pace.reach(7)
    assert str(pace).endswith(" left")
    pace.reach(10)
    assert "left" not in str(pace)
    assert [console.clock(seconds) for seconds in (0, 6.2, 60, 3723)] == ["0:00", "0:07", "1:00", "1:02:03"]
