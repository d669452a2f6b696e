"""A search for hyper-parameters: the space, trials that end, fail, are pruned and are resumed, and the command."""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conftest import ROOT, raises
from coterie.core.errors import CoterieError
from coterie.core.metrics import Summary
from coterie.tools.cli.sweep import read_axis
from coterie.tools.experiments import runner
from coterie.tools.experiments import search as searching
from coterie.tools.experiments.search import Axis, Choice, Metric, Range, Study, Task, Trial, check, draw
from coterie.training.config import read
from coterie.training.events import Event, Listener, RoundDone
from coterie.training.execute import execute

pytest.importorskip("optuna", reason="sweeps need optuna")

RATE = read_axis("local.lr=0.001..1 log")
MANY = read_axis("method.k=2..10")


def task(*axes: Axis, metric: Metric = "accuracy", words: tuple[str, ...] = (), prune: bool = False) -> Task:
    return Task(None, words or ("method=wecfl",), axes or (RATE, MANY), metric, prune)


@contextmanager
def unwatched(_: int) -> Iterator[Listener]:
    yield lambda event: None


def search(study: Study, trials: int) -> list[Trial]:
    told: list[Trial] = []
    study.run(trials, unwatched, told.append)
    return told


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Any, int], float | None]], list[Any]]:
    """Runs without training: `score(config, round)` says how good each of ten rounds is. Returns the runs so far."""

    def install(score: Callable[[Any, int], float | None]) -> list[Any]:
        runs: list[Any] = []

        def execute(
            config: Any, path: Path, *, resume: bool, listeners: list[Callable[[Event], None]], final_split: str
        ) -> Any:
            assert (config.validation, final_split) == (0.2, "val")
            runs.append((config, path, resume))
            path.mkdir(exist_ok=True)
            (path / "config.yaml").touch()
            for round_ in range(1, 11):
                value = score(config, round_)
                summary = Summary(0.0 if value is None else 1 - value, value, value, 1, (1,), None, None)
                for listen in listeners:
                    listen(RoundDone(round_, 1, 1, (), 1, 0.0, None, validation=summary))
            return SimpleNamespace(summary=summary)

        monkeypatch.setattr(searching, "execute", execute)
        return runs

    return install


def near_a_tenth(config: Any, round_: int) -> float:
    """Best where the rate is 0.1."""
    return 1.0 / (1.0 + abs(math.log10(config.local.rate) + 1)) * round_ / 10


# ------------------------------------------------------------------------------------------- the space


@pytest.mark.parametrize(
    ("text", "axis"),
    [
        ("local.lr=0.001..1 log", Axis("local.lr", Range(0.001, 1.0, True, False))),
        ("method.k=2..10", Axis("method.k", Range(2, 10, False, True))),
        (" method.k = 2..10 log", Axis("method.k", Range(2, 10, True, True))),
        ("x=-1..2.5", Axis("x", Range(-1, 2.5, False, False))),
        ("x=1e-3..1", Axis("x", Range(0.001, 1, False, False))),
        ("method.lam=0,0.1,1", Axis("method.lam", Choice(("0", "0.1", "1")))),
        ("method=ifca,wecfl", Axis("method.name", Choice(("ifca", "wecfl")))),
        ("data.partition.angles=[0,90],[0,180]", Axis("data.partition.angles", Choice(("[0,90]", "[0,180]")))),
    ],
)
def test_what_an_axis_says(text: str, axis: Axis) -> None:
    assert read_axis(text) == axis


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("local.lr", "expected key=low..high"),
        ("local.lr=", "expected key=low..high"),
        ("local.lr=a..b", "ends of a range are numbers"),
        ("local.lr=1..0.1", "from a lower to a higher"),
        ("local.lr=0..1 log", "a log range begins above 0"),
        ("local.lr=0.1..1 linear", "there may be 'log', not 'linear'"),
        ("local.lr=0.1..inf", "from a lower to a higher"),
    ],
)
def test_what_an_axis_cannot_say(text: str, said: str) -> None:
    with raises("option-invalid", match=said):
        read_axis(text)


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        (("method.kk=2..4",), r"method\.kk: unknown key"),
        (("method=fedavg,wecfl", "method.kk=2..4"), r"method\.kk: unknown key"),
        (("method=fedavg,wecfll",), "unknown method 'wecfll'"),
        (("method=wecfl", "method.k=-3..4"), r"method\.k"),
        (("local.optimizer=sgd,magic",), r"local\.optimizer"),
        (("local.lr=0.1..1", "local.lr=0.1,1"), r"local\.lr is given twice"),
        ((), "over what"),
    ],
)
def test_a_hopeless_space_is_told_before_anything_is_written(axes: tuple[str, ...], said: str, tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match=said):
        Study(Task(None, (), tuple(map(read_axis, axes)), "accuracy"), tmp_path / "s")
    assert not (tmp_path / "s").exists()


class Scripted:
    """An Optuna trial that draws what it is told to."""

    def __init__(self, **drawn: Any) -> None:
        self.drawn = drawn

    def suggest(self, key: str, *_: Any, **__: Any) -> Any:
        return self.drawn[key.replace(".", "_")]

    suggest_float = suggest_int = suggest_categorical = suggest


def test_a_key_is_drawn_only_where_the_drawn_method_has_it() -> None:
    space = task(MANY, RATE, read_axis("method=fedavg,wecfl"))
    assert draw(space, Scripted(method_name="wecfl", method_k=3, local_lr=0.5)) == (
        *("method.name=wecfl", "method.k=3"),
        "local.lr=0.5",
    )
    assert draw(space, Scripted(method_name="fedavg", local_lr=1e-5)) == ("method.name=fedavg", "local.lr=1e-05")


# ------------------------------------------------------------------------------------------- the study


def test_the_best_comes_first_and_every_trial_has_its_directory(pretend: Any, tmp_path: Path) -> None:
    runs = pretend(near_a_tenth)
    study = Study(task(), tmp_path / "s")
    told = search(study, 12)
    found = study.trials()
    assert [trial.number for trial in told] == list(range(12))
    assert [path.name for _, path, _ in runs] == [f"trial-{n:04d}" for n in range(12)]
    values = [trial.value for trial in found if trial.value is not None]
    assert values == sorted(values, reverse=True)
    assert len(values) == 12
    config = runs[found[0].number][0]
    assert found[0].words == (f"local.lr={config.local.lr!r}", f"method.k={config.method.params['k']}")
    assert all(2 <= c.method.params["k"] <= 10 and 0.001 <= c.local.rate <= 1 for c, _, _ in runs)
    assert len({c.local.lr for c, _, _ in runs}) == 12


def test_less_loss_is_better(pretend: Any, tmp_path: Path) -> None:
    pretend(near_a_tenth)
    study = Study(task(metric="loss"), tmp_path)
    search(study, 5)
    values = [trial.value for trial in study.trials() if trial.value is not None]
    assert values == sorted(values)


def test_an_interrupted_study_goes_on_to_the_same_trials(pretend: Any, tmp_path: Path) -> None:
    pretend(near_a_tenth)
    whole = search(Study(task(), tmp_path / "whole"), 14)

    def interrupted(config: Any, round_: int) -> float:
        if f"local.lr={config.local.lr!r}" in whole[7].words and round_ == 5:
            raise KeyboardInterrupt
        return near_a_tenth(config, round_)

    pretend(interrupted)
    with pytest.raises(KeyboardInterrupt):
        search(Study(task(), tmp_path / "parts"), 14)
    runs = pretend(near_a_tenth)
    search(Study(task(), tmp_path / "parts"), 10)
    assert [(path.name, resume) for _, path, resume in runs][:2] == [("trial-0007", True), ("trial-0008", False)]
    search(Study(task(), tmp_path / "parts"), 14)
    again = sorted(Study(task(), tmp_path / "parts").trials(), key=lambda trial: trial.number)
    assert [(t.words, t.value) for t in again] == [(t.words, t.value) for t in whole]


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (task(RATE), "over"),
        (task(RATE, read_axis("method.k=2..9")), "over"),
        (task(metric="loss"), "metric"),
        (task(words=("method=wecfl", "rounds=7")), "rounds"),
    ],
)
def test_another_space_in_the_same_place_is_refused(other: Task, what: str, tmp_path: Path) -> None:
    Study(task(), tmp_path)
    with raises("run-mismatch", match=f"holds a study of something else .differing in {what}.; choose another --out"):
        Study(other, tmp_path)
    Study(task(words=("method=wecfl", "checkpoint_every=1")), tmp_path)  # changes nothing that is found


def test_a_trial_that_fails_is_recorded_and_the_next_begins(pretend: Any, tmp_path: Path) -> None:
    def fragile(config: Any, round_: int) -> float:
        if config.method.params["k"] % 2:
            raise ValueError("odd")
        return math.nan if config.method.params["k"] == 8 else near_a_tenth(config, round_)

    runs = pretend(fragile)
    study = Study(task(), tmp_path)
    search(study, 15)
    assert len(runs) == 15
    found = {trial.number: trial for trial in Study(task(), tmp_path).trials()}
    for number, (config, _, _) in enumerate(runs):
        trial, k = found[number], config.method.params["k"]
        wanted = (
            ("fail", "odd", None) if k % 2 else ("fail", "accuracy is not a number: the run has diverged", "diverged")
        )
        assert (trial.state, trial.why, trial.code) == (wanted if k % 2 or k == 8 else ("complete", None, None))
        assert (trial.value is None) == (trial.state == "fail")
    assert {trial.state for trial in found.values()} == {"fail", "complete"}


def test_a_metric_that_no_run_has_stops_the_study(pretend: Any, tmp_path: Path) -> None:
    runs = pretend(lambda config, round_: None)
    with raises("sweep-metric-missing", match="--metric accuracy: this run has none; it has loss"):
        search(Study(task(), tmp_path), 5)
    assert len(runs) == 1


def test_pruning_stops_what_is_worse_than_half_of_the_others(pretend: Any, tmp_path: Path) -> None:
    rounds: list[int] = []

    def falling(config: Any, round_: int) -> float:
        """Each trial is worse than the one before."""
        rounds.append(round_)
        return 0.9 ** (sum(r == 1 for r in rounds))

    pretend(falling)
    study = Study(task(prune=True), tmp_path / "pruned")
    told = search(study, 8)
    assert [trial.state for trial in told] == ["complete"] * 5 + ["pruned"] * 3
    assert told[-1].why == "worse than half of the others after 5 rounds"
    assert rounds[-5:] == [1, 2, 3, 4, 5]
    rounds.clear()
    assert {trial.state for trial in search(Study(task(), tmp_path / "not"), 8)} == {"complete"}


QUICK = ("data.partition.clients=8", "local.epochs=1", "rounds=2", "method=wecfl")


@pytest.mark.exhaustive
def test_several_trials_at_a_time_are_trials_like_others(tmp_path: Path) -> None:
    """Each in a process: all end, all are told once, each is the run that its words ask for; one that fails is told."""
    space = task(RATE, read_axis("method.k=2,3,12"), words=QUICK)  # with eight clients there are no twelve clusters
    study, told, at_once = Study(space, tmp_path / "s"), list[Trial](), list[tuple[int, ...]]()
    study.run(6, unwatched, told.append, 2, at_once.append)
    assert sorted(trial.number for trial in told) == list(range(6))
    assert max(map(len, at_once)) == 2
    assert sorted(told, key=lambda t: t.number) == sorted(study.trials(), key=lambda t: t.number)
    for one in told:
        k = dict(word.split("=") for word in one.words)["method.k"]
        assert (one.state, one.value is None) == (("fail", True) if k == "12" else ("complete", False))
        assert one.code == ("config-invalid-value" if k == "12" else None)
    assert {trial.state for trial in told} == {"fail", "complete"}
    whole = next(trial for trial in told if trial.value is not None)
    again = execute(read(None, [*space.searched, *whole.words]), tmp_path / "again", final_split="val")
    assert again.accuracy == whole.value
    study.run(6, unwatched, told.append, 2)  # nothing is left to do
    assert len(told) == 6


@pytest.mark.exhaustive
def test_what_was_interrupted_goes_on_among_several(tmp_path: Path) -> None:
    study = Study(task(RATE, words=QUICK), tmp_path)

    def stop(at: tuple[int, ...]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        study.run(3, unwatched, lambda trial: None, 2, stop)
    assert study.trials() == []
    told: list[Trial] = []
    Study(task(RATE, words=QUICK), tmp_path).run(3, unwatched, told.append, 2)
    assert sorted(trial.number for trial in told) == [0, 1, 2]
    assert {trial.state for trial in told} == {"complete"}


def test_a_process_that_dies_is_a_trial_that_failed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    dies = ["-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"]
    monkeypatch.setattr(runner, "COMMAND", dies)
    told: list[Trial] = []
    Study(task(), tmp_path).run(2, unwatched, told.append, 2)
    assert [(trial.state, trial.why) for trial in told] == [("fail", "killed by signal 9")] * 2


@pytest.mark.exhaustive
def test_a_metric_that_no_run_has_stops_several_too(tmp_path: Path) -> None:
    words = ("data.name=digits", "data.partition.name=iid", "data.partition.clients=4", "local.epochs=1", "rounds=1")
    study = Study(task(RATE, words=words, metric="ari"), tmp_path)  # nobody knows of hidden groups there
    with pytest.raises(CoterieError, match="--metric ari: this run has none; it has accuracy"):
        study.run(9, unwatched, lambda trial: None, 2)
    assert len(study.trials()) <= 2


@pytest.mark.exhaustive
def test_trials_in_processes_are_pruned_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Good rates first, as the study is told; then one that is hopeless from the first round on."""
    rates = iter(["0.3"] * 5 + ["1e-9"])
    words = ("data.partition.clients=4", "local.epochs=1", "rounds=7", "method=fedavg")
    told: list[Trial] = []
    study = Study(task(RATE, words=words, prune=True), tmp_path)
    monkeypatch.setattr("coterie.tools.experiments.search.draw", lambda *_: (f"local.lr={next(rates)}",))
    study.run(5, unwatched, told.append)
    study.run(6, unwatched, told.append, 2)
    assert [trial.state for trial in told] == ["complete"] * 5 + ["pruned"]
    assert told[-1].why == "worse than half of the others after 5 rounds"


def test_two_sweeps_do_not_work_in_one_place(pretend: Any, tmp_path: Path) -> None:
    pretend(near_a_tenth)
    first = Study(task(), tmp_path)

    def second(trial: Trial) -> None:
        with raises("run-locked"):
            search(Study(task(), tmp_path), 3)

    first.run(1, unwatched, second)
    search(Study(task(), tmp_path), 2)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with raises("extra-missing", match=r"coterie sweep needs optuna: pip install 'coterie\[sweep\]'"):
        Study(task(), tmp_path)


# ------------------------------------------------------------------------------------------- the command


def coterie(
    patch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], cwd: Path, *words: str
) -> tuple[object, str, str]:
    """The command in this process: exit code, stdout, stderr."""
    from coterie.tools.cli.main import main

    patch.chdir(cwd)
    patch.setattr(sys, "path", list(sys.path))
    patch.setattr(sys, "argv", ["coterie", *words])
    capfd.readouterr()
    with pytest.raises(SystemExit) as end:
        main()
    said = capfd.readouterr()
    return end.value.code or 0, said.out, said.err


def test_the_command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    space = ("--over", "local.lr=0.01..1 log", "--over", "method.k=2..12", "--trials", "4", "--out", "s")
    code, out, err = coterie(monkeypatch, capfd, tmp_path, "sweep", *QUICK, *space, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert sorted(trial["number"] for trial in found["trials"]) == [0, 1, 2, 3]
    assert all(Path(trial["run_dir"]).is_dir() for trial in found["trials"] if trial["state"] == "complete")
    best = found["trials"][0]
    assert found["best"] == best["number"]
    page = Path(found["importance"]).read_text(encoding="utf-8")
    assert "local.lr" in page
    assert "<script src=" not in page  # plotly.js is in the file
    assert len(page) > 1e6

    assert found["scored_on"] == "validation"
    trials = [json.loads(line) for line in (Path(best["run_dir"]) / "rounds.jsonl").read_text().splitlines()]
    assert all("accuracy" not in line for line in trials)  # no trial has looked at the test samples
    assert trials[-1]["validation"]["accuracy"] == best["value"]

    # The printed command finds the same again as the best, trained on all training samples, has on the test samples.
    words = shlex.split(found["command"])
    assert words[:2] == ["coterie", "run"]
    code, out, _ = coterie(monkeypatch, capfd, tmp_path, *words[1:], "--json")
    assert code == 0
    assert json.loads(out)["accuracy"] == found["test"]["accuracy"]
    assert Path(found["test"]["run_dir"]).name == f"best-{best['number']:04d}"

    code, out, err = coterie(monkeypatch, capfd, tmp_path, "sweep", *QUICK, *space, "--trials", "5")
    assert code == 0
    assert "4 trials are there already, 1 to go" in err
    assert "trial 4 (5/5)" in err
    assert "Warning" not in err
    assert "[I " not in err  # Optuna's log
    assert "the best again: coterie run " in out
    assert "validation" in out
    assert "test accuracy of the best: " in out
    assert "importance: s/importance.html" in out
    code, _, err = coterie(monkeypatch, capfd, tmp_path, "sweep", *QUICK, "--over", "local.lr=0.1,1", "--out", "s")
    assert code == 2
    assert "holds a study of something else" in err
    code, _, err = coterie(monkeypatch, capfd, tmp_path, "sweep", *QUICK, *space, "--metric", "acuracy")
    assert code == 2
    assert "Did you mean 'accuracy'?" in err


def test_the_documented_sweeps_can_be_begun() -> None:
    page = (ROOT / "docs" / "compare.md").read_text(encoding="utf-8")
    lines = [shlex.split(line)[2:] for line in page.splitlines() if line.startswith("coterie sweep ")]
    assert len(lines) == 2
    for line in lines:
        over = [word for option, word in pairwise(line) if option == "--over"]
        words = [word for word in line if "=" in word and word not in over]
        space = Task(None, tuple(words), tuple(map(read_axis, over)), "accuracy")
        check(space)
        assert len(space.axes) == 2
