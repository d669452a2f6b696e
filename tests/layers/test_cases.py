"""What the contract of layers promises, case by case: the table in docs/architecture.md."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import coterie
from conftest import make_federation, raises
from coterie import All, Evaluate, Fit, Local
from coterie.client.contract import Moment
from coterie.core.errors import CoterieError
from coterie.core.tables import Clients, Roster
from coterie.core.tasks import Fitted
from coterie.engines.contract import Kind, Missing, Outcome, Traffic, Visit
from coterie.engines.sequential import Sequential
from coterie.layers import ORDER, chosen
from coterie.layers.attack import Hostile
from coterie.layers.contract import EVERY_KIND, TRAINING, Layer, Onward, Round, Stack
from coterie.layers.quorum import Quorum
from coterie.training.ask import RoundAsk
from coterie.training.settings import Settings

LOCAL = Local(steps=1, batch=4, lr=0.1)
SOURCE = Path(coterie.__file__).parent


class Noting(Layer):
    """Notes what happens to it."""

    key = "noting"
    kinds = EVERY_KIND

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.visits: list[Visit] = []
        self.outcomes: list[Outcome] = []
        self.committed = 0

    def begin(self, round: Round) -> None:
        self.heard.append(f"begin {round.number}.{round.attempt}")

    def visit(self, visit: Visit, onward: Onward) -> Outcome:
        outcome = onward(visit)
        self.visits.append(visit)
        self.outcomes.append(outcome)
        return outcome

    def commit(self, round: Round, before: Any, after: Any) -> Mapping[str, Any]:
        self.heard.append(f"commit {round.number}.{round.attempt}")
        self.committed += 1
        return {"committed": self.committed}

    def abort(self, round: Round, error: CoterieError) -> None:
        self.heard.append(f"abort {round.number}.{round.attempt}: {type(error).__name__}")

    def pack(self) -> Mapping[str, Any]:
        return {"committed": self.committed}

    def unpack(self, kept: Mapping[str, Any], lost: Sequence[Path]) -> None:
        self.committed = kept["committed"]


class Away(Sequential):
    """Some clients do not answer in the first attempts at training."""

    def __init__(self, data: Any, attempts: int, away: Sequence[int] = range(6)) -> None:
        super().__init__(coterie.Model(lambda: torch.nn.Linear(2, 2)), data)
        self._left, self._away = attempts, tuple(away)

    def visit(self, visit: Visit) -> Outcome:
        if visit.keep and self._left:
            self._left -= 1
            here = ~torch.isin(visit.ids, torch.tensor(self._away))
            outcome = super().visit(Visit(visit.tasks, visit.ids[here], visit.moment, visit.kind))
            gone = tuple(Missing(client, "away") for client in visit.ids[~here].tolist())
            return Outcome(outcome.replies, (*outcome.missing, *gone))
        return super().visit(visit)


def go(engine: Any = "sequential", layers: Sequence[Layer] = (), **settings: Any) -> coterie.Result[Any]:
    settings = {"rounds": 1} | settings
    method = settings.pop("method", coterie.FedAvg(local=LOCAL))
    return coterie.run(method, make_federation(10), "linear", engine=engine, layers=layers, **settings)


# ------------------------------------------------------------------------------------------- an attempt that fails


def test_an_attempt_that_fails_is_told_to_every_layer_and_leaves_no_memory() -> None:
    """Personal models of the attempt that does not stand are undone; Ditto keeps one at every client that answered."""
    noted, ditto = Noting(), coterie.Ditto(local=LOCAL)
    engine = Away(make_federation(10), 1)
    go(engine, [noted], method=ditto)
    assert noted.heard == ["begin 0.0", "abort 0.0: QuorumError", "begin 0.1", "commit 0.1"]
    again = Away(make_federation(10), 0)
    go(again, method=ditto)
    assert engine.memory.tensors().keys() == again.memory.tensors().keys()
    for key, value in again.memory.tensors().items():
        torch.testing.assert_close(engine.memory.tensors()[key], value)


def test_what_was_committed_stays_and_what_privacy_released_is_spent() -> None:
    settings: dict[str, Any] = {"rounds": 2, "aggregator": "median", "server_optimizer": "momentum"}
    stack = {layer.key: layer for layer in chosen(Settings(**settings))}
    before = {key: layer.pack() for key, layer in stack.items()}
    attempt = begun(Stack(Away(make_federation(10), 9), tuple(stack.values())))
    assert {key: str(layer.pack()) for key, layer in stack.items()} == {k: str(v) for k, v in before.items()}
    del attempt
    private = coterie.Privacy(noise=1.0, smallest=1.0)
    once = go(privacy=private)
    twice = go(Away(make_federation(10), 1), privacy=private)
    assert once.privacy is not None
    assert twice.privacy is not None
    charged = {many: epsilon for epsilon, many in twice.privacy.clients}
    assert twice.history[0].attempts == 2
    assert charged.keys() == {4, 6}  # four had answered the attempt that did not stand
    assert charged[6] == once.privacy.epsilon < charged[4]


def begun(stack: Stack) -> Round:
    """An attempt that is begun, visited and aborted."""
    data = make_federation(10)
    model = coterie.Model(lambda: torch.nn.Linear(2, 2))
    attempt = Round(0, 0, data.roster.ids, data.roster, None, 0, model, stack.engine)
    stack.begin(attempt)
    with pytest.raises(coterie.QuorumError) as error:
        stack.visit(Visit((Fit(All(torch.zeros(6)), LOCAL),), data.roster.ids, Moment(0, 0, 0)))
    stack.abort(attempt, error.value)
    return attempt


def test_a_further_attempt_that_a_layer_does_not_allow_is_not_made() -> None:
    class Once(Noting):
        def may_continue(self) -> CoterieError | None:
            return CoterieError("enough", code="privacy-budget") if self.heard else None

    layer = Once()
    with raises("privacy-budget", match="enough"):
        go(Away(make_federation(10), 1), [layer], rounds=5)
    assert layer.heard == ["begin 0.0", "abort 0.0: QuorumError"]
    again = Once()
    assert len(go(layers=[again], rounds=5).history) == 1  # and no further round


# --------------------------------------------------------------------------------------------------- kinds of visits


def test_only_training_passes_layers_but_for_the_lies_of_hostile_clients() -> None:
    assert {kind.key for kind in ORDER if kind.kinds != TRAINING} == {"attack"}
    assert Hostile.kinds == EVERY_KIND


def test_every_visit_has_its_kind() -> None:
    noted = Noting()
    go(layers=[noted], newcomers=0.2, method=coterie.WeCFL(k=2, local=Local(steps=1, batch=4, lr="auto")))
    kinds: list[Kind] = list(dict.fromkeys(visit.kind for visit in noted.visits))
    assert kinds == ["probe", "train", "evaluate", "admit"]
    assert [visit.keep for visit in noted.visits] == [visit.kind == "train" for visit in noted.visits]
    looks = [visit for visit in noted.visits if visit.kind == "evaluate"]
    assert all(isinstance(task, Evaluate) for visit in looks for task in visit.tasks)


def test_a_layer_of_training_sees_nothing_else() -> None:
    class Training(Noting):
        kinds = TRAINING

    noted = Training()
    go(layers=[noted])
    assert [visit.kind for visit in noted.visits] == ["train"]


# ------------------------------------------------------------------------------------------------------- nobody


def test_an_outcome_may_be_empty_and_the_error_comes_after_the_stack() -> None:
    data, noted = make_federation(3), Noting()
    nobody = torch.empty(0, dtype=torch.int64)
    ask = RoundAsk(Stack(Away(data, 9, range(3)), [noted]), data.roster.ids, 0, 0)
    with raises("no-answer", match="no client answered"):
        ask(Fit(All(torch.zeros(6)), LOCAL))
    with raises("no-answer", match="no client was drawn"):
        ask(Fit(All(torch.zeros(6)), LOCAL, on=nobody))
    assert [len(outcome.replies[0].ids) for outcome in noted.outcomes] == [0, 0]


def test_a_sealed_outcome_hides_whether_anybody_answered_and_is_not_kept() -> None:
    class Sealing(Layer):
        key = "sealing"

        def visit(self, visit: Visit, onward: Onward) -> Outcome:
            outcome = onward(visit)
            return Outcome(outcome.replies, outcome.missing, sealed=True)

    data = make_federation(3)
    ask = RoundAsk(Stack(Away(data, 1, range(3)), [Sealing()]), data.roster.ids, 0, 0)
    assert len(ask(Fit(All(torch.zeros(6)), LOCAL)).ids) == 0
    assert len(ask(Fit(All(torch.zeros(6)), LOCAL)).ids) == 3
    assert ask.fitted == []  # no diagnostics of it


def test_diagnostics_are_of_what_passed_the_layers_and_of_nothing_private() -> None:
    assert go(rounds=1).history[0].discrepancy is not None
    assert go(rounds=1, privacy=coterie.Privacy(noise=1.0)).history[0].discrepancy is None


# --------------------------------------------------------------------------------------------- bytes, and abilities


def test_who_dropped_out_was_not_sent_to() -> None:
    order = [kind.key for kind in ORDER]
    assert order.index("dropout") < order.index("traffic") < order.index("attack")
    for event in go(rounds=3, dropout=0.4, quorum=0.0).history:
        assert event.missing
        assert event.layers["traffic"]["down"] == event.answered * 6 * 4


def test_on_a_wire_the_engines_own_count_is_read() -> None:
    class Wire(Sequential):
        traffic = Traffic()

        def visit(self, visit: Visit) -> Outcome:
            self.traffic.down += 1000
            self.traffic.up += 10
            return super().visit(visit)

    result = go(Wire(coterie.Model(lambda: torch.nn.Linear(2, 2)), make_federation(10)), rounds=2)
    assert [event.layers["traffic"] for event in result.history] == [{"down": 1000, "up": 10}] * 2


def test_the_engine_is_told_of_rejected_updates_through_every_layer() -> None:
    class Listening(Sequential):
        heard: list[int] = []  # noqa: RUF012

        def visit(self, visit: Visit) -> Outcome:
            outcome = super().visit(visit)
            (reply,) = outcome.replies
            if not visit.keep or not isinstance(reply, Fitted):
                return outcome
            far = reply.models.clone()
            far[3] += 1e6
            return Outcome((Fitted(reply.ids, reply.n, reply.loss, far),), ())

        def rejected(self, client: int, why: str) -> None:
            self.heard.append(client)

    engine = Listening(coterie.Model(lambda: torch.nn.Linear(2, 2)), make_federation(10))
    (event,) = go(engine, [Noting()]).history
    assert engine.heard == [3]
    assert event.rejected == (3,)
    assert event.layers["screening"]["rejected"] == [3]


# ------------------------------------------------------------------------------------------------------ aggregators


def test_an_optimizer_goes_around_a_robust_rule_or_a_private_mean_and_these_two_are_refused() -> None:
    assert [layer.key for layer in chosen(Settings(server_optimizer="momentum", aggregator="median"))][:3] == [  # type: ignore[arg-type]
        "server_optimizer",
        "quorum",
        "aggregator",
    ]
    private = coterie.Privacy(noise=1.0)
    keys = [layer.key for layer in chosen(Settings(server_optimizer="momentum", privacy=private))]  # type: ignore[arg-type]
    assert keys == ["server_optimizer", "privacy", "quorum", "traffic"]  # clipped updates are not screened
    with raises("argument-invalid", match="a robust aggregator looks at all updates at once"):
        Settings(privacy=private, aggregator="median")  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------------ resume


def test_what_was_committed_is_in_the_checkpoint_and_never_read_from_the_rounds(tmp_path: Path) -> None:
    go(layers=[Noting()], rounds=2, out=tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert [line["layers"]["noting"] for line in lines] == [{"committed": 1}, {"committed": 2}]
    for line in lines:
        line["layers"] = {}
    (tmp_path / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    more = Noting()
    result = go(layers=[more], rounds=3, out=tmp_path, resume=True)
    assert more.committed == 3
    assert result.history[-1].layers["noting"] == {"committed": 3}
    with raises("checkpoint-mismatch", match="layers"):
        go(layers=[Counted()], rounds=4, out=tmp_path, resume=True)


class Counted(Noting):
    """Another one."""

    version = 2


def test_a_layer_knows_the_version_of_what_it_has_packed() -> None:
    with raises("run-version", match="version 1 of 'noting', this program knows 2"):
        Stack(Sequential(coterie.Model(lambda: torch.nn.Linear(2, 2)), make_federation(3)), [Counted()]).unpack(
            {"noting": {"version": 1, "committed": 3}}
        )


# ------------------------------------------------------------------------------------------------- who knows of whom


@pytest.mark.parametrize(
    "file", ["loop.py", "ask.py", "checkpoint.py", "round_history.py", "run_directory.py", "events.py"]
)
def test_loop_record_and_checkpoint_name_no_layer(file: str) -> None:
    words = (
        "attack|hostile|dropout|traffic|bytes_|screen|reject(?!ed)|quorum|retr(y|ies)|privacy|ledger|moments|aggregator"
    )
    words += "|robust|defence|quarantin|server_optimizer|momentum|update_bound|epsilon"
    text = (SOURCE / "training" / file).read_text()
    text = re.sub(r"attack\.json \.\.\.|said\.get\(\"attack\"\)|attack=", "", text)  # the name of a file; Result.attack
    text = re.sub(r"coterie\.training\.retry|do_round", "", text)
    found = [line.strip() for line in text.splitlines() if re.search(words, line)]
    assert not found


def test_layers_know_no_other_layer_but_for_a_shorthand() -> None:
    """What two of them need is in `contract`, in `engines.updates` or among the pure functions."""
    for file in (SOURCE / "layers").glob("*.py"):
        if file.name in ("__init__.py", "contract.py"):
            continue
        imports = re.findall(r"from coterie\.layers\.(\w+) import", file.read_text())
        assert set(imports) <= {"contract", "accountant"}, file.name


def test_every_key_is_its_own() -> None:
    keys = [kind.key for kind in ORDER]
    assert len(set(keys)) == len(keys)
    assert all(kind.of is not Layer.of for kind in ORDER)


def test_finish_and_document_are_told_of_the_run(tmp_path: Path) -> None:
    class Ending(Noting):
        said: Any = None

        def finish(self, score: Any) -> Any:
            self.said = {"accuracy": score(make_federation(10)).accuracy}
            return self.said

        def document(self, clients: Clients) -> Mapping[str, Any] | None:
            return None if self.said is None else dict(self.said)

    events: list[Any] = []
    result = go(layers=[Ending()], out=tmp_path, listeners=[events.append])
    assert events[-1].layers["noting"]["accuracy"] == pytest.approx(result.accuracy)
    assert json.loads((tmp_path / "noting.json").read_text()) == events[-1].layers["noting"]


def test_the_quorum_is_of_all_visits_of_an_attempt_not_of_the_last_one() -> None:
    """Half of 4 clients: 0 is missing in the first visit, 2 and 3 in the second, so 1 of 4 answers and 2 are needed."""
    layer, ids = Quorum(0.5), torch.arange(4)
    layer.begin(Round(0, 0, ids, Roster(ids, torch.ones(4)), None, 0, Any, Any))  # type: ignore[arg-type]

    def visit(*clients: int, missing: Sequence[int]) -> Outcome:
        there = Visit((), torch.tensor(clients), Moment(0, 0, 0))
        return layer.visit(there, lambda _: Outcome((), tuple(Missing(client, "away") for client in missing)))

    visit(0, missing=[0])  # a visit to a single client does not depend on that client alone
    with raises("quorum", match="1 of 4 clients answered, the quorum is 2"):
        visit(2, 3, missing=[2, 3])
