"""Where a round's time goes: what is measured on which engines, and what is said of it. Nothing here reads a clock."""

from __future__ import annotations

import json
import sys

import pytest
import typer
from round_cost import EngineCost, candidates, compared, configured, main, measure

from conftest import raises
from coterie.core.errors import CoterieError
from coterie.engines.contract import idle_seconds
from coterie.training.build import build
from coterie.training.config import read
from coterie.training.settings import Settings

WORDS = ["method.name=fedavg", "data.partition.clients=6", "local.steps=1", "rounds=4"]


def cost(name: str, workers: int | None = None, start: float = 0.0, clients: float = 1.0) -> EngineCost:
    return EngineCost(name, workers, start, clients, server=0.5, evaluation=0.25, waiting=0.0)


def test_a_whole_run_by_hand() -> None:
    """A start of 2, four rounds of 1 + 0.5, and evaluations after the second and the fourth of 0.25 each."""
    assert cost("batched", 1, start=2.0).whole_run(Settings(rounds=4, evaluate_every=2)) == pytest.approx(8.5)


def test_the_fastest_of_the_whole_run_is_named_with_what_to_write() -> None:
    settings = Settings(rounds=4, evaluate_every=4)
    said = list(
        compared([cost("sequential", clients=5.0), cost("workers", 2, start=0.75), cost("batched", 1, 2.0)], settings)
    )
    assert said == [
        "this configuration runs on sequential: about 22.2 s for 4 rounds",
        "workers, 2 processes would be 3.18 times as fast: about 7 s",
        "to use it: engine.name=workers engine.workers=2",
    ]
    assert (
        list(compared([cost("batched", 1), cost("sequential", clients=5.0)], settings))[1]
        == "none of the others is faster"
    )


def test_every_engine_of_the_machine_once_and_the_configured_one_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("round_cost.cores", lambda: 4)
    config = read(None, WORDS)
    made = build(config)
    found = [(one.engine, one.workers) for one in candidates(config, made)]
    assert found == [("batched", 1), ("sequential", None), ("workers", 4), ("batched", 4)]
    named = read(None, [*WORDS, "engine.name=workers", "engine.workers=2"])
    assert [(one.engine, one.workers) for one in candidates(named, made, ["sequential"])] == [
        ("workers", 2),
        ("sequential", None),
    ]
    monkeypatch.setattr("round_cost.cores", lambda: 1)
    assert [(one.engine, one.workers) for one in candidates(config, made)] == [("batched", 1), ("sequential", None)]
    with raises("option-invalid", match="--engine: fast"):
        candidates(config, made, ["fast"])


def test_all_parts_of_a_round_are_measured() -> None:
    config = read(None, [*WORDS, "evaluate_every=3", "engine.name=workers", "engine.workers=2"])
    made = build(config)
    found = measure(made, config.settings, configured(config, made), rounds=1)
    assert (found.name, found.workers) == ("workers", 2)
    assert min(found.start, found.clients, found.server, found.evaluation) > 0
    assert found.waiting >= 0


def test_an_engine_without_processes_does_not_wait() -> None:
    assert idle_seconds(object()) == 0.0


# ------------------------------------------------------------------------------------------------- the command line


def called(*words: str) -> int:
    """As the script is; returns what the shell would see."""
    parent = typer.Typer(pretty_exceptions_enable=False)
    parent.command()(main)
    try:
        parent([*WORDS, *words])
    except CoterieError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except SystemExit as left:
        return int(left.code or 0)
    raise AssertionError("it did not end")


def test_as_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert called("--rounds", "1", "--engine", "sequential", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["method"], found["model"], found["rounds"]) == ("fedavg", "linear", 1)
    assert [one["name"] for one in found["engines"]] == ["batched", "sequential"]
    assert found["fastest"]["name"] in ("batched", "sequential")
    assert found["times_as_fast"] >= 1


def test_as_a_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert called("--rounds", "1", "--engine", "batched", "engine.name=sequential") == 0
    seen = capsys.readouterr()
    assert "fedavg, linear, digits; seconds, median of 1 rounds" in seen.out
    assert "this configuration runs on sequential" in seen.out
    assert "batched, 1 process" in seen.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["engine.name=ray"], "ray is not measured here"),
        (["--engine", "fast"], "--engine: fast"),
        (["nothing=4"], "nothing"),
    ],
)
def test_a_mistake_is_told(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(*words) == 2
    assert said in capsys.readouterr().err
