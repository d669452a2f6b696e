"""Which rounds are evaluated, and who is: evaluate_every, evaluate_last, evaluate_on, evaluate_whom."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coterie
from conftest import linear, make_federation, raises
from coterie.core.settings import settings_from
from coterie.training.config import read
from coterie.training.events import Event, RoundDone
from coterie.training.run_directory import read_history
from coterie.training.sampling import clients_to_evaluate, sample_cohort, split_newcomers
from coterie.training.settings import Settings, SettingsOptions, how_many

FEW: dict[str, Any] = {"rounds": 6, "participation": 2, "evaluate_whom": "met", "checkpoint_every": 2}


def go(clients: int = 10, method: Any = None, **more: Any) -> coterie.Result[Any]:
    return coterie.run(method or coterie.FedAvg(), make_federation(clients), linear(), **more)


# -------------------------------------------------------------------------------------------------- which rounds


@pytest.mark.parametrize(
    ("rounds", "every", "last", "looked"),
    [
        (5, 1, 1, [1, 2, 3, 4, 5]),
        (7, 3, 1, [3, 6, 7]),
        (6, 3, 1, [3, 6]),
        (10, 5, 3, [5, 8, 9, 10]),
        (10, 4, 2, [4, 8, 9, 10]),
        (4, 100, 1, [4]),
        (4, 100, 9, [1, 2, 3, 4]),
        (1, 1, 1, [1]),
    ],
)
def test_which_rounds_are_evaluated(rounds: int, every: int, last: int, looked: list[int]) -> None:
    settings = Settings(rounds=rounds, evaluate_every=every, evaluate_last=last)
    assert [t + 1 for t in range(rounds) if settings.evaluates(t)] == looked
    result = go(4, rounds=rounds, evaluate_every=every, evaluate_last=last)
    assert [event.round for event in result.history if event.summary is not None] == looked


def test_looking_does_not_change_the_run() -> None:
    often, seldom = (go(rounds=6, evaluate_every=n, participation=3, method=coterie.WeCFL(k=2)) for n in (1, 6))
    assert torch.equal(often.state.centers, seldom.state.centers)
    met = go(rounds=6, participation=3, evaluate_whom="met", method=coterie.WeCFL(k=2))
    assert torch.equal(often.state.centers, met.state.centers)


# ------------------------------------------------------------------------------------------------------- who is


def listened(**more: Any) -> tuple[list[set[int]], coterie.Result[Any]]:
    """Who was evaluated, round by round."""
    seen: list[set[int]] = []

    def listen(event: Event) -> None:
        if isinstance(event, RoundDone) and event.fresh is not None:
            seen.append(set(event.fresh.clients.ids.tolist()))

    result = go(listeners=[listen], **more)
    return seen, result


def cohorts(settings: Settings, clients: int = 10) -> list[set[int]]:
    roster, _ = split_newcomers(make_federation(clients), settings)
    return [set(sample_cohort(roster, settings, t, 0).tolist()) for t in range(settings.rounds)]


def test_met_is_the_union_of_the_cohorts_so_far() -> None:
    seen, result = listened(**FEW)
    drawn = cohorts(result.settings)
    assert seen == [set.union(*drawn[: t + 1]) for t in range(6)]
    assert len(seen[0]) == 2
    assert len(seen[-1]) < 10, "the test needs a client that was never drawn"
    assert set(result.clients.ids.tolist()) == seen[-1]
    np.testing.assert_array_equal(np.flatnonzero(result.assignments >= 0), sorted(seen[-1]))


def test_met_where_few_rounds_are_evaluated() -> None:
    seen, result = listened(**FEW, evaluate_every=4)
    drawn = cohorts(result.settings)
    assert seen == [set.union(*drawn[:4]), set.union(*drawn)]


def test_met_among_those_that_train() -> None:
    seen, result = listened(**FEW, newcomers=0.3)
    assert result.newcomers is not None
    newcomers = set(result.newcomers.clients.ids.tolist())
    assert len(newcomers) == 3
    assert not newcomers & seen[-1]
    assert seen[-1] == set.union(*cohorts(result.settings))


def test_met_is_everyone_where_everyone_takes_part() -> None:
    seen, _ = listened(rounds=2, evaluate_whom="met")
    assert seen == [set(range(10))] * 2


def test_met_does_not_admit_the_unmet() -> None:
    """A method that takes in clients for evaluation is not asked to take in those who were not drawn."""
    result = go(**FEW, method=coterie.StoCFL())
    drawn = set.union(*cohorts(result.settings))
    assert set(result.placed.labels.ids.tolist()) == drawn


def test_met_after_a_resume(tmp_path: Path) -> None:
    whole = go(**FEW, out=tmp_path / "whole")

    class CrashError(Exception):
        pass

    def crash(event: Event) -> None:
        if isinstance(event, RoundDone) and event.round == 3:
            raise CrashError

    with pytest.raises(CrashError):
        go(**FEW, out=tmp_path / "parts", listeners=[crash])
    parts = go(**FEW, out=tmp_path / "parts", resume=True)
    assert torch.equal(parts.clients.ids, whole.clients.ids)
    assert torch.equal(parts.clients.accuracy, whole.clients.accuracy)
    said, expected = (read_history(tmp_path / name, 6) for name in ("parts", "whole"))
    assert [event.summary for event in said] == [event.summary for event in expected]
    nothing_left = go(**FEW, out=tmp_path / "parts", resume=True)
    assert nothing_left.history == ()
    assert torch.equal(nothing_left.clients.ids, whole.clients.ids)


def test_audience_by_hand() -> None:
    federation = make_federation(6)
    settings = Settings(rounds=3, participation=1, evaluate_whom="met")
    roster, _ = split_newcomers(federation, settings)
    first = clients_to_evaluate(roster, settings, [1])
    assert torch.equal(first.ids, sample_cohort(roster, settings, 0, 0))
    assert torch.equal(first.n, federation.roster.n[first.ids])
    assert clients_to_evaluate(roster, Settings(participation=1), [1]) is roster


def test_those_a_round_was_repeated_with_are_met() -> None:
    trained: list[set[int]] = []
    seen: list[set[int]] = []
    attempts: list[int] = []

    def listen(event: Event) -> None:
        if isinstance(event, RoundDone) and event.fresh is not None and event.fresh.trained is not None:
            trained.append(set(event.fresh.trained.ids.tolist()))
            seen.append(set(event.fresh.clients.ids.tolist()))
            attempts.append(event.attempts)

    go(**FEW, dropout=0.5, quorum=1.0, retries=30, listeners=[listen])
    assert max(attempts) > 1
    for t in range(6):
        assert trained[t] <= seen[t]


# ----------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("evaluate_last", 0), ("evaluate_last", -1), ("evaluate_last", 1.5), ("evaluate_every", 0)),
        *(("evaluate_whom", "some"), ("evaluate_on", 0), ("evaluate_on", 1.5), ("evaluate_on", -1)),
    ],
)
def test_refused(key: str, value: object) -> None:
    with raises("config-invalid-value", match=key):
        settings_from(Settings, **{key: value})


@pytest.mark.parametrize("on", [0.5, 3])
def test_met_and_a_share_of_them_are_refused(on: float) -> None:
    with raises("config-invalid-value", match=r"evaluate_whom: met .* leave evaluate_on at 1\.0"):
        settings_from(Settings, evaluate_whom="met", evaluate_on=on)
    assert settings_from(Settings, evaluate_whom="met", evaluate_on=1.0).evaluate_on == 1.0


def test_met_and_one_client_is_refused() -> None:
    with raises("config-invalid-value", match="evaluate_whom"):
        settings_from(Settings, evaluate_whom="met", evaluate_on=1)


def test_the_command_says_so_in_plain_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from coterie.tools.cli.main import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["coterie", "run", "evaluate_whom=met", "evaluate_on=0.5", "--out", "run"])
    with pytest.raises(SystemExit) as end:
        main()
    said = capsys.readouterr().err
    assert end.value.code == 2
    assert "evaluate_whom: met is everyone met so far; leave evaluate_on at 1.0" in " ".join(said.split())
    assert "Traceback" not in said
    assert "pydantic" not in said
    assert not (tmp_path / "run").exists()


def test_how_many() -> None:
    assert [how_many("x", share, 10) for share in (1, 10, 1.0, 0.04, 0.26, 0.25)] == [1, 10, 10, 1, 3, 2]
    with raises("config-invalid-value", match="x: 11 clients, but there are only 10"):
        how_many("x", 11, 10)


def test_the_settings_are_arguments_of_run() -> None:
    """Editors and type checkers see them in `SettingsOptions`, `help` and `inspect.signature` in the signature."""
    names = [f.name for f in dataclasses.fields(Settings)]
    assert sorted(SettingsOptions.__annotations__) == sorted(names)
    parameters = inspect.signature(coterie.run).parameters
    for field in dataclasses.fields(Settings):
        assert parameters[field.name].default == field.default
        assert parameters[field.name].kind is inspect.Parameter.KEYWORD_ONLY
    assert not any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    words = set(re.findall(r"\w+", coterie.run.__doc__ or ""))
    assert set(parameters) <= words
    with raises("argument-unknown", match=r"run: unknown argument 'round'. Did you mean 'rounds'\?"):
        coterie.run("fedavg", make_federation(4), round=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("key", ["str", "int", "a[0]"])
def test_an_unknown_key_may_have_any_name(key: str, tmp_path: Path) -> None:
    """Also one that the checker itself uses for the branches of a union."""
    (tmp_path / "a.yaml").write_text(f"'{key}': 1\n")
    with raises("config-unknown-key", match="unknown key"):
        read(tmp_path / "a.yaml")
