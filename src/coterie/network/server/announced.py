"""Whether replies fit what a client announced of its data."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.client.answers import DescribeAnswer, EvaluateAnswer, FitAnswer, ScoreAnswer
from coterie.core.tasks import Evaluate, Task
from coterie.network.protocol.messages import VisitReply
from coterie.network.protocol.wire import WireError
from coterie.network.server.bans import UnableError
from coterie.network.server.client_registry import ClientRegistry


def check_size(registry: ClientRegistry, client: int, report: VisitReply, tasks: Sequence[Task | None]) -> None:
    """A client's weight is the sample count it announced. If its data changed, it must introduce itself again."""
    said, tested = registry.known[client].train, registry.known[client].test
    for task, answer in zip(tasks, report.answers, strict=True):
        halves = (said // 2, said - said // 2) if isinstance(task, Evaluate) and task.half is not None else ()
        if isinstance(answer, EvaluateAnswer) and answer.n not in (0, said, tested, *halves):
            raise WireError(
                f"was evaluated on {answer.n} samples, but announced {said} for training and {tested} for tests",
                code="wire-answer-invalid",
            )
        if isinstance(answer, FitAnswer | ScoreAnswer | DescribeAnswer) and answer.n != said:
            registry.here.pop(client, None)
            raise UnableError(f"trained on {answer.n} samples, but announced {said}")
