"""What is said between server and client: who may be called what, and what counts as an answer."""

from __future__ import annotations

import dataclasses
import math
import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from visit_requests import CENTERS, request

from conftest import raises
from coterie import __version__
from coterie.client.contract import Answer, DescribeAnswer, EvaluateAnswer, FitAnswer, ScoreAnswer
from coterie.core.errors import CoterieError
from coterie.core.tasks import All, Best, Describe, Estimated, Evaluate, Fit, Local, Mix, Own, Ref, Row, Score, Task
from coterie.network.messages import (
    PROTOCOL,
    ClientInfo,
    Hello,
    ModelSpec,
    Refusal,
    VisitReply,
    answer_limits,
    check_answers,
    check_name,
    read_as_client,
    read_as_server,
)
from coterie.network.wire import PayloadLimits, WireError, encode

P = 4
THETA = torch.ones(P)
ABOUT = ClientInfo(PROTOCOL, "hospital-3", 100, 20, (1, 8, 8), "classification", 10, __version__)

# ------------------------------------------------------------------------------------------------------------ messages


@pytest.mark.parametrize("name", ["a", "Hospital_3", "node-1.example", "x" * 64, "..a"])
def test_names_that_are(name: str) -> None:
    assert check_name(name) == name
    assert dataclasses.replace(ABOUT, name=name).name == name


@pytest.mark.parametrize("name", ["", "x" * 65, "a b", "a/b", "../a", "ä", "a\n", ".", "..", "...", "a:b", "\x1b[31m"])
def test_names_that_are_none(name: str) -> None:
    with raises("wire-invalid-name"):
        dataclasses.replace(ABOUT, name=name)
    with raises("wire-invalid-name"):
        Hello(PROTOCOL, name)


def test_messages_arrive() -> None:
    assert read_as_client(encode(Hello(PROTOCOL, "r"))) == Hello(PROTOCOL, "r")
    assert read_as_server(encode(ABOUT)) == ABOUT
    assert read_as_server(encode(Refusal("no data"))) == Refusal("no data")
    assert read_as_client(encode(Refusal("does not fit"))) == Refusal("does not fit")
    assert repr(read_as_client(encode(request()))) == repr(request())
    report = VisitReply(PROTOCOL, "r", 1, 2, 3, (FitAnswer(5, 0.5, THETA, None), None), 7, True)
    assert repr(read_as_server(encode(report))) == repr(report)


def test_a_message_goes_one_way() -> None:
    for message in (ABOUT, (1, 2), All(THETA), None):
        with pytest.raises(WireError):
            read_as_client(encode(message))
    for other in (Hello(PROTOCOL, "r"), request(), FitAnswer(1, 0.0, None, None), "x"):
        with pytest.raises(WireError):
            read_as_server(encode(other))
    with raises("wire-malformed", match="at most"):
        read_as_server(encode(ABOUT), PayloadLimits(largest=10))


def test_both_sides_speak_the_same_protocol() -> None:
    with raises("network-version", match=f"protocol 9, this side {PROTOCOL}: install the same version"):
        read_as_client(encode(Hello(9, "r")))
    with raises("network-version", match="the client speaks protocol 9"):
        read_as_server(encode(dataclasses.replace(ABOUT, protocol=9)))


@pytest.mark.parametrize(
    "change",
    [
        *({"train": -1}, {"test": 1 << 31}, {"input_shape": (0,)}, {"outputs": 0}),
        *({"version": "x" * 65}, {"version": "\n"}, {"kind": "clustering"}),
    ],
    ids=str,
)
def test_what_a_client_says_of_itself_can_be(change: dict[str, Any]) -> None:
    with raises("wire-malformed"):
        read_as_server(encode(_changed(ABOUT, change)))


@pytest.mark.parametrize("change", [{"wrote": 1 << 63}, {"wrote": -1}, {"round": -1}, {"client": 1 << 31}], ids=str)
def test_what_a_report_says_of_itself_can_be(change: dict[str, Any]) -> None:
    report = VisitReply(PROTOCOL, "r", 1, 2, 3, (), (1 << 63) - 1, False)
    assert read_as_server(encode(report)) is not None
    with raises("wire-malformed"):
        read_as_server(encode(_changed(report, change)))


@pytest.mark.parametrize("change", [{"base": 1 << 63}, {"base": -1}, {"since": -1}, {"client": -1}], ids=str)
def test_what_an_errand_says_of_itself_can_be(change: dict[str, Any]) -> None:
    with raises("wire-malformed"):
        read_as_client(encode(_changed(request(), change)))


def test_a_plan_can_be() -> None:
    plan = ModelSpec("mlp", "{}", (2,), 2, "mse", 10)
    for change in ({"size": 0}, {"size": 1 << 31}, {"outputs": 0}, {"input_shape": (-1,)}):
        with raises("wire-malformed"):
            dataclasses.replace(plan, **change)


def _changed(message: Any, change: dict[str, Any]) -> Any:
    """As somebody would send it who does not look."""
    made = object.__new__(type(message))
    made.__dict__.update(message.__dict__ | change)
    return made


def test_a_refusal_is_one_printable_line() -> None:
    assert Refusal.of(CoterieError("no\n  data")).reason == "no data"
    assert Refusal.of(ValueError("bad")).reason == "ValueError: bad"
    assert Refusal.of(ValueError("\x1b[31m")).reason == "ValueError: ?[31m"
    assert len(Refusal.of(ValueError("x" * 9999)).reason) == 500
    for reason in ("a\nb", "\x1b[31m", "x" * 501):
        with raises("wire-malformed", match="one printable line"):
            Refusal(reason)


# ------------------------------------------------------------------------------------------------------------- answers

FIT = Fit(All(THETA), Local())
SCORE = Score(CENTERS)
LOOK = Evaluate((All(THETA),))
FITTED = FitAnswer(5, 0.5, THETA, None)
SCORED = ScoreAnswer(5, torch.ones(3))
LOOKED = EvaluateAnswer(5, 0.5, 0.9, 0.8, None)
LABELS, DIRECTIONS = Describe("labels", 3), Describe("subspace", 2, rank=2)
SOFT = Evaluate((Best(CENTERS),), belongs=Estimated(CENTERS, "votes"))
SHARES = torch.tensor([0.2, 0.5, 0.3])


def start(ref: Ref) -> Fit:
    return Fit(ref, Local())


def look(*refs: Ref, **more: Any) -> Evaluate:
    return Evaluate(refs, **more)


def fitted(**change: Any) -> FitAnswer:
    return dataclasses.replace(FITTED, **change)


def looked(**change: Any) -> EvaluateAnswer:
    return dataclasses.replace(LOOKED, **change)


GOOD: list[tuple[Task | None, Answer | None]] = [
    *((None, None), (FIT, FITTED), (SCORE, SCORED), (LOOK, LOOKED)),
    *((FIT, fitted(n=(1 << 31) - 1, loss=0)), (LOOK, looked(n=0, loss=0.0, accuracy=0.0, macro_f1=0.0))),
    (dataclasses.replace(FIT, send=False), fitted(theta=None)),
    (LOOK, looked(accuracy=math.nan, macro_f1=math.nan)),
    (start(Row(THETA, 7)), fitted(choice=7)),
    (start(Best(CENTERS)), fitted(choice=2)),
    (start(Own("x", Row(THETA, 7))), fitted(choice=7)),
    (start(Own("x", Own("y", Row(THETA, 7)))), fitted(choice=7)),
    (start(Own("x", Own("y", Row(THETA, 7)))), fitted(choice=None)),  # it kept a model, which is no row
    (look(All(THETA), Best(CENTERS)), looked(choice=0)),
    (look(Row(THETA, 7), Best(CENTERS)), looked(choice=7)),
    (look(Own("x", Own("y", Row(THETA, 7))), Best(CENTERS)), looked(choice=2)),
    (SOFT, looked(choice=1, shares=SHARES)),
    (LABELS, DescribeAnswer(5, SHARES)),
    (DIRECTIONS, DescribeAnswer(5, torch.tensor([0.6, 0.8, 0, 0]))),
    (look(All(THETA), All(THETA), mixture=Own("pi", All(torch.ones(2)))), looked(choice=0, shares=torch.ones(2))),
    (
        look(All(THETA), belongs=Mix(torch.ones(3, 5), Estimated(CENTERS, "votes"))),
        looked(choice=0, shares=torch.ones(5)),
    ),
]
BAD: list[tuple[Task | None, Any, str]] = [
    (FIT, None, "a NoneType to a Fit"),
    (None, FITTED, "a FitAnswer to a NoneType"),
    (FIT, SCORED, "a ScoreAnswer to a Fit"),
    (SCORE, LOOKED, "a EvaluateAnswer to a Score"),
    (LOOK, FITTED, "a FitAnswer to a Evaluate"),
    *((FIT, fitted(n=n), "n: from 1") for n in (0, -1, 1 << 31, 1.0, True, None)),
    *((SCORE, dataclasses.replace(SCORED, n=n), "n: from 1") for n in (0, 1 << 31)),
    *((LOOK, looked(n=n), "n: from 0") for n in (-1, 1 << 31, True)),
    *((FIT, fitted(loss=loss), "loss: ") for loss in (math.nan, math.inf, -math.inf, 1e39, True, None)),
    *((LOOK, looked(loss=loss), "loss: ") for loss in (math.nan, math.inf, 1e300)),
    (FIT, fitted(theta=None), "theta: asked for and not sent"),
    (dataclasses.replace(FIT, send=False), FITTED, "theta: sent and not asked for"),
    *((FIT, fitted(theta=torch.ones(shape)), "theta: torch.float32 (4,), not") for shape in (3, 5, (4, 1), (1, 4), ())),
    *((FIT, fitted(theta=THETA.to(t)), "theta: torch.float32 (4,), not") for t in (torch.float64, torch.int64)),
    *((FIT, fitted(theta=THETA * bad), "theta: NaN or Inf") for bad in (math.nan, math.inf)),
    *((SCORE, ScoreAnswer(5, torch.ones(shape)), "scores: ") for shape in (2, 4, (3, 1), ())),
    (SCORE, ScoreAnswer(5, torch.tensor([1, math.nan, 1])), "scores: NaN or Inf"),
    (SCORE, ScoreAnswer(5, torch.ones(3, dtype=torch.int64)), "scores: "),
    *((LOOK, looked(accuracy=v), "accuracy: ") for v in (-0.1, 1.1, math.inf, True, None)),
    *((LOOK, looked(macro_f1=v), "macro_f1: ") for v in (-0.1, 2, -math.inf)),
    *((FIT, fitted(choice=row), "choice: None, not") for row in (0, -1, True)),
    *((start(Row(THETA, 7)), fitted(choice=row), "choice: one of the 1 rows from 7 to 7, not") for row in (6, 0, None)),
    *((start(Best(CENTERS)), fitted(choice=row), "choice: one of the 3 rows") for row in (3, -1, None, 1.0, True)),
    (start(Own("x", Best(CENTERS))), fitted(choice=None), "choice: "),
    (start(Own("x", Own("y", Row(THETA, 7)))), fitted(choice=6), "choice: "),
    (look(Row(THETA, 7), Best(CENTERS)), looked(choice=2), "choice: "),
    (look(All(THETA), Best(CENTERS)), looked(choice=None), "choice: "),
    (LOOK, looked(shares=SHARES, choice=1), "shares: sent and not asked for"),
    (SOFT, looked(choice=1), "shares: asked for and not sent"),
    *((SOFT, looked(choice=row, shares=SHARES), "choice: ") for row in (0, None, True)),
    (SOFT, looked(choice=1, shares=SHARES[:2]), "shares: "),
    (SOFT, looked(choice=1, shares=SHARES.long()), "shares: "),
    (SOFT, looked(choice=1, shares=torch.tensor([0, math.nan, 0])), "shares: NaN or Inf"),
    (LABELS, SCORED, "a ScoreAnswer to a Describe"),
    (LABELS, DescribeAnswer(0, SHARES), "n: from 1"),
    *((LABELS, DescribeAnswer(5, torch.ones(shape) / 3), "row: ") for shape in (2, 4, (3, 1), ())),
    (LABELS, DescribeAnswer(5, torch.tensor([1, math.nan, 0])), "row: NaN or Inf"),
    *((LABELS, DescribeAnswer(5, torch.tensor(row)), "row: shares") for row in ([2.0, 0, 0], [-0.5, 1, 0.5])),
    (DIRECTIONS, DescribeAnswer(5, torch.tensor([0.6, 0.8, 3, 0])), "row: vectors of length 1"),
]


@pytest.mark.parametrize(("task", "answer"), GOOD)
def test_an_answer_that_is_one(task: Task | None, answer: Answer | None) -> None:
    check_answers((answer,), (task,), P)
    report = VisitReply(PROTOCOL, "r", 1, 2, 3, (answer,), (1 << 63) - 1, False)
    for compress in (False, True):  # and it is as large as it may be
        assert read_as_server(encode(report, compress), answer_limits((task,), P)) is not None


def test_an_answer_is_as_large_as_its_tasks_imply() -> None:
    many = 1 << 20
    noise = torch.frombuffer(bytearray(random.Random(1).randbytes(4 * many)), dtype=torch.uint8).view(torch.float32)
    model = noise.nan_to_num(0, 1, -1)  # which cannot be compressed
    fits = (Fit(All(model), Local()), Fit(All(model), Local(), send=False))
    report = VisitReply(PROTOCOL, "r", 1, 2, 3, (dataclasses.replace(FITTED, theta=model), None), None, False)
    allowed = answer_limits(fits, many)
    assert allowed.largest < 4.1 * many
    assert allowed.arrays == 1
    for compress in (False, True):
        assert read_as_server(encode(report, compress), allowed) is not None
        with raises("wire-malformed", match=r"at most|larger than"):
            read_as_server(encode(report, compress), answer_limits(fits, many - many // 50))


@pytest.mark.parametrize(("task", "answer", "message"), BAD)
def test_an_answer_that_is_none(task: Task | None, answer: Any, message: str) -> None:
    with pytest.raises(WireError) as caught:
        check_answers((FITTED, answer), (FIT, task), P)
    assert str(caught.value).startswith(f"answer 1: {message}")


def test_an_answer_for_each_task() -> None:
    for answers in ((), (FITTED,), (FITTED, FITTED, FITTED), (None, FITTED)):
        with raises("wire-unexpected"):
            check_answers(answers, (FIT, FIT), P)


def test_models_are_of_the_type_that_is_trained() -> None:
    double = fitted(theta=THETA.double())
    check_answers((double,), (FIT,), P, torch.float64)
    with raises("wire-answer-invalid", match=r"torch\.float64 \(4,\), not torch\.float32"):
        check_answers((FITTED,), (FIT,), P, torch.float64)


ODD: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, -1, 0, 7, 1 << 40, 0.5, math.nan, math.inf, "x", (), THETA, THETA * math.nan, torch.tensor(3), FITTED]
)


@settings(max_examples=300)
@given(st.sampled_from([pair for pair in GOOD if pair[1] is not None]), st.data())
def test_whatever_comes_is_an_answer_or_a_wire_error(pair: tuple[Task, Any], data: st.DataObject) -> None:
    task, answer = pair
    name = data.draw(st.sampled_from([f.name for f in dataclasses.fields(answer)]))
    try:
        check_answers((dataclasses.replace(answer, **{name: data.draw(ODD)}),), (task,), P)
    except WireError as error:
        if name not in str(error):
            raise
