"""What a round costs over simulated links: counted against the arithmetic of `traffic.py`, and by hand."""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from network_cost import LinkTrial, Load, Wire, main, spread_over, try_out

from conftest import raises
from coterie.core.codec import pack
from coterie.core.errors import CoterieError
from coterie.data.federation import Federation
from coterie.engines.contract import Outcome, Visit
from coterie.layers.traffic import down, up
from coterie.network import engine as exchange_module
from coterie.network import worker as desk_module
from coterie.network.engine import NetworkEngine
from coterie.training.config import read
from coterie.training.execute import execute

LINKS, ROUNDS = 6, 2
WORDS = ("local.steps=1",)  # how long clients train is not what is measured
OUTLINE = 2000  # bytes of a message besides its tensors, at most
SLOW = Wire(mbit=8, ms=50, server_mbit=16)  # 1 and 2 million bytes per second


@cache
def trial(
    *words: str, links: int = LINKS, rounds: int = ROUNDS, compress: bool = False, wire: Wire = SLOW
) -> LinkTrial:
    return try_out(read(None, [*WORDS, *words]), links, wire, rounds=rounds, compress=compress)


def same_models(one: Any, other: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(pack(one.state)[1], pack(other.state)[1], strict=True))


# ------------------------------------------------------------------------------------------------------- the wire


def test_the_slowest_client_sets_the_pace() -> None:
    """0.05 s there, 0.05 s back, 1.5 MB at 1 MB/s; all links together 1.6 MB at 2 MB/s would be 0.8 s."""
    assert SLOW.seconds([Load(1_000_000, 500_000), Load(100_000, 0)]) == pytest.approx(1.6)


def test_many_clients_fill_the_servers_link() -> None:
    """Four times 1.5 MB at 2 MB/s."""
    assert SLOW.seconds([Load(1_000_000, 500_000)] * 4) == pytest.approx(3.0)


def test_nobody_takes_no_time() -> None:
    assert SLOW.seconds([]) == 0


def test_a_rounds_seconds_on_slow_links_of_clients() -> None:
    found = trial(
        "method.name=stocfl", "method.tau=0.5", rounds=1, wire=Wire(mbit=0.08, ms=100, server_mbit=1000)
    ).round
    assert found.exchanges == 2
    assert found.wire_seconds == pytest.approx(2 * 0.2 + (found.down + found.up) / LINKS / 10_000, rel=0.01)


def test_a_rounds_seconds_on_a_slow_link_of_the_server() -> None:
    found = trial("method.name=stocfl", "method.tau=0.5", rounds=1, wire=Wire(mbit=1000, ms=0, server_mbit=0.008)).round
    assert found.wire_seconds == pytest.approx((found.down + found.up) / 1000)


def test_halves_tries_its_split_on_held_out_halves_over_the_network() -> None:
    """A reply about half of a client's samples is a valid one, for odd numbers of samples too."""
    found = trial("method.name=halves", "local.steps=20", "local.batch=8", "local.lr=0.1", rounds=4)
    told = [one.reason for event in found.result.history for one in event.counted]
    assert any("became" in reason for reason in told)  # so that a trial is on from the second round
    assert not [missing for event in found.result.history for missing in event.missing]


# ---------------------------------------------------------------------------------------------- messages and bytes


@pytest.mark.parametrize("method", ["fedavg", "wecfl", "ifca"])
def test_bytes_are_those_of_the_arithmetic_and_an_outline_for_each_message(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worked_out: list[tuple[int, int]] = []
    visit = NetworkEngine.visit

    def noting(engine: NetworkEngine, asked: Visit) -> Outcome:
        sent, outcome = down(asked, engine.memory), visit(engine, asked)
        worked_out.extend([(sent, up(outcome.replies))] if asked.keep else [])
        return outcome

    monkeypatch.setattr(NetworkEngine, "visit", noting)
    found = trial.__wrapped__(f"method.name={method}")  # not one that was kept: what it sends is noted here
    cost, history = found.round, found.result.history
    assert len(history) == ROUNDS
    assert (cost.exchanges, cost.messages) == (1, 2 * LINKS)
    for event, (sent, received) in zip(history, worked_out, strict=True):  # the log has what went over the wire
        assert sent < event.layers["traffic"]["down"] < sent + LINKS * OUTLINE
        assert received < event.layers["traffic"]["up"] < received + LINKS * OUTLINE
    assert cost.down == sum(event.layers["traffic"]["down"] for event in history) / ROUNDS
    assert cost.up == sum(event.layers["traffic"]["up"] for event in history) / ROUNDS


def test_ifca_sends_all_models_wecfl_and_fedavg_one() -> None:
    k, model = 4, 650 * 4
    more = trial("method.name=ifca").round.down - trial("method.name=fedavg").round.down
    assert more == pytest.approx(LINKS * (k - 1) * model, abs=LINKS * OUTLINE)
    assert trial("method.name=wecfl").round.down < 2 * LINKS * model


def test_three_times_the_links_three_times_the_bytes() -> None:
    few, many = trial("method.name=fedavg", links=4).round, trial("method.name=fedavg", links=12).round
    assert many.messages == 3 * few.messages
    assert many.down == pytest.approx(3 * few.down, rel=0.01)
    assert many.up == pytest.approx(3 * few.up, rel=0.01)


def test_only_those_who_take_part_cost_something() -> None:
    half = trial("method.name=fedavg", "participation=0.5").round
    assert half.messages == LINKS
    assert half.down == pytest.approx(trial("method.name=fedavg").round.down / 2, rel=0.01)


def test_evaluation_is_once_and_apart() -> None:
    found = trial("method.name=fedavg", "evaluate_every=1")
    assert (found.evaluation.exchanges, found.evaluation.messages) == (1, 2 * LINKS)
    assert [event.summary is None for event in found.result.history] == [True, False]
    assert found.evaluation.up < found.round.up  # scores, no models


# --------------------------------------------------------------------------------------------- it is the real thing


def test_the_models_are_those_of_a_run_in_one_process(tmp_path: Path) -> None:
    words = [*WORDS, f"rounds={ROUNDS}", f"data.partition.clients={LINKS}", "method.name=wecfl", "engine=sequential"]
    config = read(None, words)
    assert same_models(trial("method.name=wecfl").result, execute(config, tmp_path / "run"))


def test_compressed_is_smaller_and_the_same() -> None:
    plain, packed = trial("method.name=wecfl"), trial("method.name=wecfl", compress=True)
    assert (packed.round.messages, packed.compressed, plain.compressed) == (plain.round.messages, True, False)
    assert packed.round.down < plain.round.down
    assert packed.round.up < plain.round.up
    assert same_models(plain.result, packed.result)


def test_whose_seconds_are_whose(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that only they move: opening takes a client 1 s and the server 10 s, training takes 100 s."""
    now = 0.0

    def slow(place: Any, name: str, seconds: float) -> None:
        before = getattr(place, name)

        def after(*given: Any) -> Any:
            nonlocal now
            now += seconds
            return before(*given)

        monkeypatch.setattr(place, name, after)

    monkeypatch.setattr("network_cost.time.thread_time", lambda: now)
    slow(desk_module, "read_as_client", 1)
    slow(exchange_module, "read_as_server", 10)
    slow(desk_module.ClientWorker, "_carry_out", 100)
    found = try_out(read(None, [*WORDS, "method.name=fedavg"]), 4, SLOW, rounds=2)
    for cost in (found.round, found.evaluation):
        assert (cost.server_seconds, cost.client_seconds) == (40, 1)
    assert found.added(found) == 0


def test_a_client_that_cannot_answer_ends_it() -> None:
    with raises("no-answer", match="client 0 did not answer: "):
        try_out(read(None, ["local.steps=5", "local.lr=1e38", "method.name=fedavg"]), 4, SLOW)


# -------------------------------------------------------------------------------------------------- how many clients


def test_data_that_makes_its_own_clients_makes_as_many() -> None:
    config = spread_over(read(None, ["data.name=synthetic"]), 7)
    assert config.data.params["clients"] == 7


def test_of_owners_so_many_are_drawn() -> None:
    partition = spread_over(read(None, ["data.name=femnist"]), 7).data.partition
    assert partition is not None
    assert (partition.name, partition.params) == ("natural", {"clients": 7})


def own_data() -> Federation:
    """A user's own, named as module:function: it has the clients it has."""
    raise AssertionError("never built")


def test_data_with_the_clients_it_has_is_refused() -> None:
    name = f"{__name__}:own_data"
    with raises("partition-not-applicable", match=r"own_data' has as many clients as it has.*data.partition.name=iid"):
        spread_over(read(None, [f"data.name={name}"]), 7)


def test_fewer_clients_than_links_are_refused() -> None:
    words = ["data.partition.name=dirichlet", "data.partition.at_least=20", "data.partition.poor=drop"]
    with raises("data-shape", match=r"\d+ clients for 40 links"):
        try_out(read(None, words), 40, SLOW)


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


def test_json_is_all_there_is_on_stdout(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("method.name=fedavg", "--links", "4", "--links", "5", "--links", "4", "--rounds", "1", "--ms", "40")
    assert called(*words, "--compress", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["method"], found["parameters"], found["rounds"]) == ("fedavg", 650, 1)
    assert found["wire"] == {"mbit": 20.0, "ms": 40.0, "server_mbit": 1000.0}
    trials = found["trials"]
    assert [(t["links"], t["compressed"]) for t in trials] == [(4, False), (4, True), (5, False), (5, True)]
    assert [t["round"]["messages"] for t in trials] == [8, 8, 10, 10]
    assert ["added_seconds" in t for t in trials] == [False, True, False, True]
    assert trials[1]["round"]["down"] < trials[0]["round"]["down"]
    assert all(t["round"]["wire_seconds"] > 0.08 for t in trials)


def test_the_table_says_how_links_are_reckoned(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called("--links", "4", "--rounds", "1", "--mbit", "5") == 0
    seen = capsys.readouterr()
    assert "halves, linear of 650 numbers, digits; per round, mean of 1" in seen.out
    assert "5 Mbit/s and 30 ms to each client, 1000 Mbit/s at the server" in seen.out
    assert "2 x delay + a client's bytes / its rate" in seen.out
    row = next(line.split() for line in seen.out.splitlines() if line.strip().startswith("4 "))
    assert row[:3] == ["4", "1", "8"]
    assert "added" not in seen.out
    assert "4 links" in seen.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--links", "0"], "--links"),
        (["--rounds", "0"], "--rounds"),
        (["--mbit", "0"], "--mbit: megabits per second above 0"),
        (["--server-mbit", "nan"], "--server-mbit: megabits per second above 0"),
        (["--ms", "-1"], "--ms: milliseconds from 0 on"),
        (["rounds=4"], "rounds: write --rounds instead"),
        (["data.partition.clients=4"], "write --links instead"),
        (["dropout=0.1"], "dropout: is for simulations"),
        (["nothing=4"], "nothing"),
        (["participation=20", "--links", "4"], "participation: 20 clients, but there are only 4"),
        ([f"data.name={__name__}:own_data"], "cannot be spread over"),
        (["method.name=nothing"], "unknown method 'nothing'"),
        (["missing.yaml"], "expected key=value"),
    ],
)
def test_a_mistake_is_told_and_ends_with_2(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(*words) == 2
    seen = capsys.readouterr()
    assert said in seen.err
    assert not seen.out
