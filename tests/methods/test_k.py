"""k: auto looks at enough clients, whoever takes part in the round, and says how it chose."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from scripted import LOCAL, TWO, ScriptedAsk, a_fit, assert_same, fitted, make_cohort, make_roster, on, played, silence

import coterie
from coterie import FLHC, IFCA, FedEM, FedSoft, Fitted, Local, WeCFL
from coterie.core.tables import Counted
from coterie.methods.k import ASKED, K, at_least
from coterie.tools.cli.console import progress
from coterie.training.build import build
from coterie.training.config import read
from coterie.training.events import RoundDone, RunStarted
from coterie.training.round_history import _event, line_of
from coterie.training.run_directory import read_history

ROSTER = make_roster(dict.fromkeys(range(30), 10))


def directions(*ids: int) -> Any:
    """Two kinds of clients: even ones move right, odd ones up; everyone starts where the first model is."""

    def answer(task: Any) -> Any:
        fit = a_fit(task)
        start = fit.start.theta  # type: ignore[union-attr]
        moved = {i: (start + torch.tensor([0.01 * i, 5.0] if i % 2 else [5.0, 0.01 * i])).tolist() for i in ids}
        return fitted(moved)

    return answer


def halves(*ids: int, kinds: int = 2, noise: float = 0.1) -> Any:
    """Kind i % kinds moves to corner i % kinds of a hypercube; the two halves of a client differ by noise."""

    def answer(tasks: Any) -> Any:
        assert [(a_fit(t).half, a_fit(t).sketch, a_fit(t).send, a_fit(t).keep) for t in tasks] == [
            (0, 256, False, False),
            (1, 256, False, False),
        ]
        assert all(a_fit(t).local == Local(steps=50, lr=LOCAL.lr) for t in tasks)
        rng = np.random.default_rng(0)
        replies = []
        for _ in tasks:
            corners = torch.eye(max(kinds, 2))[[i % kinds for i in ids]] + noise * torch.from_numpy(
                rng.normal(size=(len(ids), max(kinds, 2)))
            )
            replies.append(
                Fitted(torch.tensor(ids), torch.full((len(ids),), 10), torch.zeros(len(ids)), sketch=corners)
            )
        return replies

    return answer


def test_two_halves_of_more_than_the_cohort_are_asked_for() -> None:
    """Two of a kind take part; all thirty clients are seen, and two kinds."""
    centers = K("auto").random_models(TWO, ROSTER, np.random.default_rng(0))
    cohort = make_cohort([2, 4], ROSTER)
    ask = ScriptedAsk(halves(*range(30)))
    assert len(K("auto").chosen(centers, LOCAL, cohort, ask)) == 2
    assert [on(task) for task in ask.asked[0]] == [list(range(30))] * 2
    (told,) = cohort.counted
    assert (told.k, told.clients, told.rule) == (2, 30, "auto (halves)")
    # |b - mean|^2 is 1/2 + 2 * 0.1^2 with one cluster and 2 * 0.1^2 with two, about: R2 = 0.5 / 0.52 = 0.96.
    assert dict(told.scores)[2] == pytest.approx(0.96, abs=0.01)
    assert dict(told.scores)[1] == 0.0
    assert "predict one half of the clients' data from the other 96% better than one does" in str(told)


@pytest.mark.parametrize(
    ("kinds", "noise", "k", "reason"),
    [
        (1, 0.1, 1, "no split predicts"),
        (3, 0.1, 3, "that many predict"),
        (2, 9.0, 1, "no split predicts"),  # too noisy to tell
        (15, 0.01, 11, "15 clusters predict"),  # more than may be chosen
    ],
)
def test_as_many_as_two_halves_show(kinds: int, noise: float, k: int, reason: str) -> None:
    cohort = make_cohort([2, 4], ROSTER)
    ask = ScriptedAsk(halves(*range(30), kinds=kinds, noise=noise))
    assert K("auto").by_halves(torch.zeros(2), LOCAL, cohort, ask) == k
    assert cohort.counted[0].reason.startswith(reason)


def test_k_means_counts_once_and_keeps_to_it() -> None:
    method = WeCFL(k="auto", local=LOCAL)
    state = method.init(TWO, ROSTER, np.random.default_rng(0))
    cohort, spots = make_cohort(range(30), ROSTER), [[0.0, 9.0], [9.0, 0.0]]
    moved = fitted({i: spots[i % 2] for i in range(30)})
    state = method.round(state, cohort, ScriptedAsk(halves(*range(30)), moved))
    assert state.centers.tolist() in (spots, spots[::-1])
    again = make_cohort(range(30), ROSTER)
    state = method.round(state, again, ScriptedAsk(moved))
    assert len(state.centers) == 2
    assert again.counted == []


def test_fl_hc_counts_when_it_clusters_and_not_before() -> None:
    method = FLHC(k="auto", warmup=1, local=LOCAL)
    state = method.init(TWO, ROSTER, np.random.default_rng(0))
    spots = [[0.0, 9.0], [9.0, 0.0]]
    moved = fitted({i: spots[i % 2] for i in range(30)})
    state = method.round(state, make_cohort(range(30), ROSTER), ScriptedAsk(moved))
    assert len(state.centers) == 1
    cohort = dataclasses.replace(make_cohort(range(30), ROSTER), round=1)
    state = method.round(state, cohort, ScriptedAsk(halves(*range(30)), moved))
    assert len(state.centers) == 2


def test_more_than_the_cohort_is_asked() -> None:
    """Two of a kind take part; the rule sees all thirty clients, and two kinds."""
    centers = K("silhouette").random_models(TWO, ROSTER, np.random.default_rng(0))
    cohort = make_cohort([2, 4], ROSTER)
    ask = ScriptedAsk(directions(*range(30)))
    assert len(K("silhouette").chosen(centers, LOCAL, cohort, ask)) == 2
    assert on(ask.asked[0]) == list(range(30))
    (told,) = cohort.counted
    assert (told.k, told.clients, told.reason) == (2, 30, "the largest mean silhouette")
    assert dict(told.scores)[2] > 0.9
    assert str(told).startswith("k = 2 by silhouette, from 30 clients: the largest mean silhouette (score by k: 2: 0.9")


@pytest.mark.parametrize("method", [IFCA(k="auto", local=LOCAL), FedEM(k="auto", local=LOCAL)])
def test_the_first_round_asks_how_many_kinds_there_are_and_trains_as_many_models(method: Any) -> None:
    """Thirty clients of two kinds, of which two take part; nobody trains, and the models are the first two drawn."""
    begun = method.init(TWO, ROSTER, np.random.default_rng(0))
    assert len(begun) == 12
    ask = ScriptedAsk(halves(*range(30)), silence)
    state = played(method, begun, make_cohort([2, 4], ROSTER), ask)
    assert on(ask.asked[0][0]) == list(range(30))
    assert state is begun  # nobody trained: the round has changed nothing, and the next one asks again
    given = ask.asked[1][-1] if isinstance(ask.asked[1], list) else ask.asked[1].start
    assert_same(given.centers, begun[:2])


def centers_of(state: Any) -> torch.Tensor:
    found: torch.Tensor = state if isinstance(state, torch.Tensor) else state.centers
    return found


def test_at_most_so_many_are_asked() -> None:
    roster = make_roster(dict.fromkeys(range(500), 1))
    found = at_least(ASKED, make_cohort([7, 499], roster)).tolist()
    assert len(set(found)) == ASKED == len(found)
    assert {7, 499} < set(found)
    assert found == sorted(found)
    assert at_least(2, make_cohort([7, 499], roster)).tolist() == [7, 499]


@pytest.mark.parametrize("kind", [IFCA, FedSoft, FedEM])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_demo_at_a_tenth_has_four_kinds(kind: Any, seed: int) -> None:
    job = build(read(None, [f"seed={seed}"]))
    local = Local(epochs=5, batch=8, lr=0.1)
    seen: list[Counted] = []

    def listen(event: Any) -> None:
        if isinstance(event, RoundDone):
            seen.extend(event.counted)

    coterie.run(
        *(kind(k="auto", local=local), job.federation, job.model),
        rounds=2,
        participation=0.1,
        seed=seed,
        engine="batched",
        workers=1,
        listeners=[listen],
    )
    (told,) = seen  # once, in the first round
    assert told.k == 4
    assert told.clients == 40


def test_the_log_has_the_scores(tmp_path: Path) -> None:
    data = build(read(None, ["data.partition.clients=12"])).federation
    result = coterie.run(IFCA(k="auto", local=Local(steps=3)), data, "linear", rounds=2, out=tmp_path / "run")
    first, second = (json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines())
    assert [one["clients"] for one in first["counted"]] == [12]
    assert "counted" not in second
    told = [event.counted for event in read_history(tmp_path / "run", 2)]
    assert told == [event.counted for event in result.history]
    assert len(told[0]) == 1


def test_several_changes_in_one_round_are_all_logged() -> None:
    told = tuple(Counted(k, "halves", 40, ((1, 0.0), (2, 0.5)), f"became {k}") for k in (2, 3))
    line = line_of(RoundDone(1, 4, 4, (), 1, 0.1, None, counted=told))
    assert _event(json.loads(line)).counted == told


def test_fl_hc_counts_by_its_metric() -> None:
    """Updates of two directions in three lengths: by angle two kinds, by Euclidean distance more."""
    roster = make_roster(dict.fromkeys(range(12), 10))
    length = {i: 10.0 ** (i % 3) for i in range(12)}
    models = {i: [length[i], 0.001 * i] if i < 6 else [0.001 * i, length[i]] for i in range(12)}
    found = {}
    for metric in ("cosine", "euclidean"):
        method = FLHC(k="silhouette", warmup=0, metric=metric, linkage="average", local=LOCAL)
        state = method.init(TWO, roster, np.random.default_rng(0))
        stem = state.centers[0]
        reply = fitted({i: (stem + torch.tensor(m)).tolist() for i, m in models.items()})
        found[metric] = len(method.round(state, make_cohort(range(12), roster), ScriptedAsk(reply)).centers)
    assert found["cosine"] == 2
    assert found["euclidean"] > 2


def test_the_run_prints_how_it_chose() -> None:
    out = io.StringIO()
    told = Counted(3, "auto", 40, ((2, 0.25), (3, 0.5)), "the largest mean silhouette")
    with progress(Console(file=out, width=200), "ifca") as listen:
        listen(RunStarted("IFCA", "digits", 40, 4, 2, 0))
        for counted in ((told,), ()):
            listen(RoundDone(1, 4, 4, (), 1, 0.1, None, counted=counted))
    line = "round 1: k = 3 by auto, from 40 clients: the largest mean silhouette (score by k: 2: 0.25, 3: 0.50)"
    assert out.getvalue().count(line) == 1
