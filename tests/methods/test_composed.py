"""Composed by hand: every valid combination does a round, the named methods are points of it, the rest is refused."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from scripted import (
    FOUR,
    LOCAL,
    TWO,
    Imagined,
    ScriptedAsk,
    a_fit,
    all_of,
    by_client,
    close,
    fitted,
    make_cohort,
    make_roster,
    on,
    pick_of,
    played,
    scored,
    silence,
    starts,
    table,
    variant,
)
from torch import Tensor

from coterie.core.local import Local
from coterie.core.references import All, Best
from coterie.core.tables import ByClient
from coterie.core.tasks import Fit, Fitted, Score
from coterie.methods.composed import Composed, Kit, followed, looked
from coterie.methods.fesem import FeSEM
from coterie.methods.ifca import IFCA
from coterie.methods.wecfl import WeCFL

ROSTER = make_roster({3: 30, 7: 10, 11: 60, 19: 20, 23: 50})
IDS = [3, 7, 11, 19]
# 3 and 11 move right, 7 and 19 up, from wherever they start.
STEPS = {3: [9.0, 0, 0, 0], 7: [0.0, 9, 0, 0], 11: [8.0, 1, 0, 0], 19: [1.0, 8, 0, 0], 23: [9.0, 1, 0, 0]}
LOSSES = {3: [0.1, 0.9], 7: [0.8, 0.2], 11: [0.3, 0.7], 19: [0.5, 0.4], 23: [0.1, 0.2]}


def step(i: int, start: Tensor) -> list[float]:
    return STEPS[i]


def begin(method: Composed) -> Kit:
    """The first state, with the one model at zero (or two rows by hand)."""
    state = method.init(FOUR, ROSTER, np.random.default_rng(0))
    if method.clustering == "argmin":
        centers = torch.tensor([[1.0, 0, 0, 0], [0.0, 1, 0, 0]])
    else:
        centers = torch.zeros_like(state.centers)
    return dataclasses.replace(state, centers=centers, anchor=torch.zeros(4))


def clusters(state: Kit) -> set[frozenset[int]]:
    labels = table(state.labels)
    return {frozenset(i for i in labels if labels[i] == k) for k in set(labels.values())}


REPRESENTATIONS = ["all", "classifier", "last_weight", "update", "gradient"]
WAYS = [
    ("euclidean", "kmeans", None),
    ("cosine", "kmeans", None),
    ("edc", "kmeans", None),
    ("euclidean", "agglomerative", None),
    ("cosine", "agglomerative", None),
    ("edc", "agglomerative", None),
    ("madc", "agglomerative", None),
    ("euclidean", "agglomerative", 5.0),
    ("cosine", "agglomerative", 0.5),
    ("madc", "agglomerative", 0.5),
    ("euclidean", "merge", 0.5),
    ("cosine", "merge", 0.5),
    ("cosine", "bipartition", 0.5),
]


@pytest.mark.parametrize("representation", REPRESENTATIONS)
@pytest.mark.parametrize(("distance", "clustering", "threshold"), WAYS)
def test_every_combination_parts_two_groups(
    representation: Any, distance: Any, clustering: Any, threshold: float | None
) -> None:
    """{3, 11} and {7, 19}, averaged by size.

    (30 * [9, 0] + 60 * [8, 1]) / 90 = [25/3, 2/3], (10 * [0, 9] + 20 * [1, 8]) / 30 = [2/3, 25/3].
    """
    method = Composed(
        representation=representation, distance=distance, clustering=clustering, threshold=threshold, k=2, local=LOCAL
    )
    cohort = make_cohort(IDS, ROSTER)
    ask = Imagined(step, cohort)
    state = method.round(begin(method), cohort, ask)
    assert clusters(state) == {frozenset({3, 11}), frozenset({7, 19})}
    labels = table(state.labels)
    close(state.centers[labels[3]], [25 / 3, 2 / 3, 0, 0])
    close(state.centers[labels[7]], [2 / 3, 25 / 3, 0, 0])
    assert len(ask.visits) == (2 if representation == "gradient" else 1)
    assert on(ask.visits[-1][0]) is None
    # And again, under the same numbers.
    cohort = make_cohort(IDS, ROSTER, round=1, seed=5)
    after = method.round(state, cohort, Imagined(step, cohort))
    assert table(after.labels) == labels
    assert len(after.centers) == 2
    # A newcomer like 3 joins it.
    ask = Imagined(lambda i, start: [30.0, 0.0, 0.0, 0.0] if representation != "gradient" else [9.0, 0, 0, 0], cohort)
    known = method.admit(after, make_cohort([3, 23], ROSTER, round=2), ask)
    assert table(known.labels)[23] == labels[3]
    assert on(ask.visits[0][0]) == [23]
    close(known.centers, after.centers)


def test_weights_of_the_mean_and_of_the_clustering_are_two_things() -> None:
    cohort = make_cohort(IDS, ROSTER)
    method = Composed(k=2, weights="equal", local=LOCAL)
    state = method.round(begin(method), cohort, Imagined(step, cohort))
    close(state.centers[table(state.labels)[3]], [8.5, 0.5, 0, 0])
    close(state.means[table(state.labels)[3]], [25 / 3, 2 / 3, 0, 0])  # by size in the clustering


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"clustering": "merge"}, "needs a threshold"),
    ({"clustering": "bipartition"}, "needs a threshold"),
    ({"clustering": "merge", "threshold": 0.5, "distance": "edc"}, "cosines"),
    ({"clustering": "bipartition", "threshold": 0.5, "distance": "madc"}, "cosines"),
    ({"distance": "madc"}, "agglomerative"),
    ({"clustering": "argmin"}, "representation 'losses'"),
    ({"clustering": "argmin", "representation": "update"}, "representation 'losses'"),
    ({"clustering": "agglomerative", "distance": "cosine", "linkage": "ward"}, "ward"),
    ({"representation": "gradients"}, "must be"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_invalid_combinations_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Composed(**options)


def test_every_combination_is_either_valid_or_refused_with_a_reason() -> None:
    representations = [*REPRESENTATIONS, "losses"]
    valid, reasons = 0, list[str]()
    for r, d, c, t in itertools.product(
        representations,
        ("euclidean", "cosine", "edc", "madc"),
        ("kmeans", "agglomerative", "merge", "bipartition", "argmin"),
        (None, 0.5),
    ):
        lengths = t is not None and c == "agglomerative" and d == "euclidean"  # a threshold there is a length
        options: dict[str, Any] = {
            "representation": r,
            "distance": d,
            "clustering": c,
            "threshold": 5.0 if lengths else t,
        }
        try:
            method = Composed(k=2, local=LOCAL, **options)
        except ValueError as error:
            reasons.append(str(error))
            continue
        valid += 1
        cohort = make_cohort(IDS, ROSTER)
        state = method.round(begin(method), cohort, Imagined(step, cohort, losses=LOSSES))
        if r == "losses" and (c not in ("kmeans", "argmin") or d != "euclidean"):
            assert sorted(table(state.labels)) == sorted(IDS)  # losses are all positive: angles say less of them
            continue
        assert clusters(state) == {frozenset({3, 11}), frozenset({7, 19})}, options
    assert valid >= 5 * 12
    assert all("'" in reason for reason in reasons)  # which value does not fit


# ------------------------------------------------------------------------------------------------- named methods


@pytest.mark.parametrize(
    ("named", "composed"),
    [
        (
            variant(FeSEM, k=2, kmeans="fresh", local=LOCAL),
            Composed(k=2, clustering_weights="equal", weights="equal", local=LOCAL),
        ),
        (variant(WeCFL, k=2, kmeans="fresh", local=LOCAL), Composed(k=2, representation="classifier", local=LOCAL)),
    ],
    ids=["fesem", "wecfl"],
)
@pytest.mark.parametrize("seed", range(3))
def test_fesem_and_wecfl_are_points(named: FeSEM, composed: Composed, seed: int) -> None:
    rng = np.random.default_rng(seed)
    ids = list(range(3, 60, 7))
    roster = make_roster({i: int(rng.integers(5, 90)) for i in ids})
    first, second = (
        {i: (rng.normal(size=4) + (6 if i % 2 else 0)).tolist() for i in ids} for _ in range(2)
    )  # clear clusters, the same in both rounds
    ours: Any = composed.init(FOUR, roster, np.random.default_rng(0))
    theirs: Any = named.init(FOUR, roster, np.random.default_rng(0))
    for t, models in enumerate((first, second)):
        n = roster.n.tolist()
        a = named.round(theirs, make_cohort(ids, roster, t, seed), ScriptedAsk(fitted(models, n, [0] * len(ids))))
        b = composed.round(ours, make_cohort(ids, roster, t, seed), ScriptedAsk(fitted(models, n, [0] * len(ids))))
        pairs = {(table(a.labels)[i], table(b.labels)[i]) for i in ids}
        assert len(pairs) == 2  # the same clusters, up to numbering
        for one, other in pairs:
            close(a.centers[one], b.centers[other].tolist(), within=1e-5)
        ours, theirs = b, a


def test_least_loss_is_ifca() -> None:
    """The client trains from the row that fits it best now, as in IFCA, and the rows are averaged by that choice."""
    composed = Composed(representation="losses", clustering="argmin", k=2, local=LOCAL)
    cohort = make_cohort([3, 7, 11], ROSTER)
    before = begin(composed)
    ask = Imagined(step, cohort, losses=LOSSES)
    state = composed.round(before, cohort, ask)
    (look,), (train,) = ask.visits
    assert isinstance(look, Score)
    assert look.rule == "loss"
    assert torch.equal(look.centers, before.centers)
    assert starts(a_fit(train).start, 3, 7, 11) == [[1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 0, 0]]
    assert table(state.labels) == {3: 0, 7: 1, 11: 0}

    def best(task: Fit) -> Any:
        assert isinstance(task.start, Best)
        return Imagined(step, cohort, losses=LOSSES)(task)

    ifca = IFCA(k=2, local=LOCAL).round(before.centers, cohort, ScriptedAsk(best))
    close(state.centers, ifca.tolist())


def test_newcomers_take_the_row_of_least_loss() -> None:
    method = Composed(representation="losses", clustering="argmin", k=2, local=LOCAL)
    state = dataclasses.replace(
        begin(method), labels=by_client({3: 0, 7: 1}), means=torch.tensor([[0.1, 0.9], [0.8, 0.2]])
    )
    ask = ScriptedAsk(scored({11: [0.4, 0.3]}))
    known = method.admit(state, make_cohort([3, 11, 19], ROSTER, round=3), ask)
    assert on(ask.asked[0]) == [11, 19]
    assert table(known.labels) == {3: 0, 7: 1, 11: 1}


# ------------------------------------------------------------------------------------------ when, and who is absent


def test_fedavg_before_the_first_clustering() -> None:
    method = Composed(k=2, first=1, local=LOCAL)
    reply = fitted({3: [3.0, 0, 0, 0], 11: [0.0, 3, 0, 0]}, [30, 60], [1, 1])
    state = method.round(begin(method), make_cohort([3, 11], ROSTER), ScriptedAsk(reply))
    close(state.centers, [[1, 2, 0, 0]])  # (30 * 3, 60 * 3) / 90
    assert table(state.labels) == {}
    (model,) = method.predictor(state).models
    close(torch.tensor(all_of(model)), [1, 2, 0, 0])
    cohort = make_cohort(IDS, ROSTER, round=1)
    assert len(clusters(method.round(state, cohort, Imagined(step, cohort)))) == 2


def swapped(i: int, start: Tensor) -> list[float]:
    """Everyone moves like the other group did."""
    return [STEPS[i][1], STEPS[i][0], 0.0, 0.0] if i != 3 else STEPS[3]


@pytest.mark.parametrize(
    ("when", "patience", "expected"), [("every", 3, True), ("once", 3, False), ("stable", 1, True)]
)
def test_when_to_cluster(when: Any, patience: int, expected: bool) -> None:
    """In round 1 client 11 moves like 7 and 19 like 3: seen or not, by when."""
    method = Composed(representation="update", k=2, when=when, patience=patience, local=LOCAL)
    cohort = make_cohort(IDS, ROSTER)
    state = method.round(begin(method), cohort, Imagined(step, cohort))
    later = make_cohort(IDS, ROSTER, round=1)
    state = method.round(state, later, Imagined(swapped, later))
    assert (clusters(state) != {frozenset({3, 11}), frozenset({7, 19})}) is expected


def test_stable_ends_after_enough_clusterings_without_a_change() -> None:
    method = Composed(representation="update", k=2, when="stable", patience=2, local=LOCAL)
    state, done = begin(method), []
    for t in range(4):
        cohort = make_cohort(IDS, ROSTER, round=t)
        state = method.round(state, cohort, Imagined(step, cohort))
        done.append((state.unchanged, state.done))
    assert done == [(0, False), (1, False), (2, True), (2, True)]
    cohort = make_cohort(IDS, ROSTER, round=4)
    state = method.round(state, cohort, Imagined(swapped, cohort))
    assert clusters(state) == {frozenset({3, 11}), frozenset({7, 19})}


def test_missing_clients_and_absent_clusters_keep_what_they_have() -> None:
    method = Composed(k=2, distance="cosine", local=LOCAL)
    cohort = make_cohort(IDS, ROSTER)
    state = method.round(begin(method), cohort, Imagined(step, cohort))
    labels = table(state.labels)
    later = make_cohort([3, 7, 11], ROSTER, round=1)
    ask = Imagined(lambda i, start: [1.0, 0, 0, 0], later, missing=[7])
    after = method.round(state, later, ask)
    # 3 and 11 are both there: one of them keeps the number, whatever k-means makes of two points.
    assert {i: table(after.labels)[i] for i in (7, 19)} == {7: labels[7], 19: labels[19]}
    assert len(after.centers) == 2


def test_a_client_nobody_clustered_enters_no_model() -> None:
    """11 answers the training but not the representation: nothing says that it belongs to cluster 0."""
    method = Composed(representation="gradient", clustering="merge", distance="cosine", threshold=0.5, local=LOCAL)
    looked = fitted({3: [9.0, 0, 0, 0], 7: [0.0, 9, 0, 0]})
    trained = fitted({3: [9.0, 0, 0, 0], 7: [0.0, 9, 0, 0], 11: [99.0, 99, 99, 99]}, n=[30, 10, 60], choice=[1, 1, 1])
    state = method.round(begin(method), make_cohort([3, 7, 11], ROSTER), ScriptedAsk(looked, trained))
    assert table(state.labels) == {3: 0, 7: 1}
    close(state.centers, [[9, 0, 0, 0], [0, 9, 0, 0]])


POINTS: list[Composed] = [
    Composed(k=2, local=LOCAL),
    Composed(representation="gradient", clustering="merge", distance="cosine", threshold=0.5, local=LOCAL),
    Composed(representation="losses", clustering="argmin", k=2, local=LOCAL),
]


@pytest.mark.parametrize("method", POINTS, ids=["models", "gradient", "losses"])
def test_nobody_answers(method: Composed) -> None:
    for state in (begin(method), known_state(method)):
        assert played(method, state, make_cohort([3, 7], ROSTER, round=1), ScriptedAsk(silence)) is state


def known_state(method: Composed) -> Kit:
    cohort = make_cohort(IDS, ROSTER)
    return method.round(begin(method), cohort, Imagined(step, cohort, losses=LOSSES))


@pytest.mark.parametrize("method", POINTS[1:], ids=["gradient", "losses"])
def test_those_who_are_represented_and_those_who_train_may_be_others(method: Composed) -> None:
    """3 answers the first question and 7 the second: no clustering, and no crash."""
    first = scored({3: [0.1, 0.9]}) if method.clustering == "argmin" else fitted({3: [9.0, 0, 0, 0]})
    trained = fitted({7: [5.0, 5, 0, 0]}, choice=[1])
    state = method.round(known_state(method), make_cohort([3, 7], ROSTER, round=1), ScriptedAsk(first, trained))
    labels = table(known_state(method).labels)
    assert {i: table(state.labels)[i] for i in IDS} == labels


def test_k_given_is_never_exceeded() -> None:
    """Two rounds of strangers, two clusters each: with k = 2 there are two clusters in the end."""
    for clustering in ("kmeans", "agglomerative"):
        method = Composed(k=2, clustering=clustering, local=LOCAL)
        first, second = make_cohort([3, 7], ROSTER), make_cohort([11, 19], ROSTER, round=1)
        state = method.round(begin(method), first, Imagined(step, first))
        state = method.round(state, second, Imagined(step, second))
        assert len(state.centers) == 2, clustering


@pytest.mark.parametrize("seed", range(6))
def test_strangers_take_the_number_of_the_old_cluster_they_are_like(seed: int) -> None:
    """Nobody of the first round is there in the second, and k = 2 leaves no new number: 11 moves like 3 and 19 like 7,
    so that 3 must not be left with a model that 19 trained."""
    method = Composed(k=2, local=LOCAL)
    first, second = make_cohort([3, 7], ROSTER), make_cohort([11, 19], ROSTER, round=1, seed=seed)
    state = method.round(begin(method), first, Imagined(step, first))
    labels = table(method.round(state, second, Imagined(step, second)).labels)
    assert labels[3] == labels[11] != labels[19] == labels[7]


def test_one_client() -> None:
    alone = make_roster({7: 5})
    for method in (Composed(k=1, local=LOCAL), Composed(k=1, clustering="agglomerative", local=LOCAL), POINTS[1]):
        method = dataclasses.replace(method, k=1)
        cohort = make_cohort([7], alone)
        state = method.init(FOUR, alone, np.random.default_rng(0))
        state = method.round(state, cohort, Imagined(step, cohort))
        assert table(state.labels) == {7: 0}
    pick_of(method.predictor(state).models[0])


ROSTER_OF_THREE = make_roster({2: 10, 5: 10, 8: 10})
THREE = torch.tensor([2, 5, 8])
LOCAL = Local(epochs=4, lr=0.5, momentum=0.9, keep_optimizer=True)


def looks(rows: Mapping[int, Sequence[float]]) -> Fitted:
    reply = fitted(rows)
    return dataclasses.replace(reply, sent=None, sketch=reply.theta)


def trained(*losses: float) -> Fitted:
    return dataclasses.replace(fitted(dict.fromkeys((2, 5, 8), (1.0, 1.0))), loss=torch.tensor(losses))


def state(known: bool = True) -> Kit:
    """2 and 5 in cluster 0, 8 in cluster 1; losses were 0.5, at first 2. Halves of client 2: (0, 0) and (1, 0)."""
    kit = Kit.fresh(torch.zeros(2, 2), torch.arange(2))
    pairs = torch.tensor([[[0.0, 0.0], [1.0, 0.0]]] * 3)
    return dataclasses.replace(
        kit,
        labels=ByClient(THREE, torch.tensor([0, 0, 1])),
        means=torch.zeros(2, 2),
        done=True,
        last=ByClient(THREE, torch.full((3,), 0.5)),
        worst=2.0,
        looks=ByClient(THREE, pairs) if known else kit.looks,
    )


def test_everyone_is_measured_once_after_the_clustering_from_the_first_model() -> None:
    first = looks(dict.fromkeys(THREE.tolist(), (0.0, 0.0))), looks(dict.fromkeys(THREE.tolist(), (1.0, 0.0)))
    ask = ScriptedAsk(list(first))
    new, here = followed(
        state(known=False), trained(0.5, 0.5, 0.5), LOCAL, make_cohort(THREE.tolist(), ROSTER_OF_THREE, 3), ask
    )
    one, two = ask.asked[0]
    assert isinstance(one.start, All)
    assert torch.equal(one.start.theta, torch.zeros(2))
    assert [(fit.half, fit.keep, fit.send, fit.sketch) for fit in (one, two)] == [(h, False, False, 2) for h in (0, 1)]
    assert (one.local.steps, one.local.epochs, one.local.lr, one.local.keep_optimizer) == (50, None, 0.5, False)
    assert torch.equal(new.looks.values, state().looks.values)
    assert here.all()
    again, _ = followed(
        new, trained(0.5, 0.5, 0.5), LOCAL, make_cohort(THREE.tolist(), ROSTER_OF_THREE, 4), ScriptedAsk()
    )
    assert torch.equal(again.looks.values, new.looks.values)  # and nobody is asked


@pytest.mark.parametrize("elsewhere", [True, False])
def test_of_a_small_rise_two_halves_decide(elsewhere: bool) -> None:
    now = (11.0, 10.0) if elsewhere else (0.5, 0.5)
    pair = [looks({2: (now[0], 0.0)}), looks({2: (now[1], 0.0)})]
    fresh = [looks({2: (7.0, 0.0)}), looks({2: (8.0, 0.0)})]
    ask = ScriptedAsk(scored({2: (0.9, 0.6)}), pair, *([fresh] if elsewhere else []))
    cohort = make_cohort(THREE.tolist(), ROSTER_OF_THREE, 3)
    new, here = followed(state(), trained(0.9, 0.5, 0.5), LOCAL, cohort, ask)
    assert new.labels.at(THREE).tolist() == ([1, 0, 1] if elsewhere else [0, 0, 1])
    assert here.tolist() == [not elsewhere, True, True]  # who has moved was trained from the wrong model
    assert len(cohort.counted) == elsewhere
    assert new.looks.at(THREE)[0].tolist() == ([[7.0, 0.0], [8.0, 0.0]] if elsewhere else [[0.0, 0.0], [1.0, 0.0]])
    assert new.done


def test_a_jump_needs_no_halves() -> None:
    fresh = [looks({2: (7.0, 0.0)}), looks({2: (8.0, 0.0)})]
    ask = ScriptedAsk(scored({2: (1.9, 0.3)}), fresh)
    new, _ = followed(state(), trained(1.9, 0.5, 0.5), LOCAL, make_cohort(THREE.tolist(), ROSTER_OF_THREE, 3), ask)
    assert new.labels.at(THREE).tolist() == [1, 0, 1]


def test_before_the_clustering_nobody_is_measured() -> None:
    early = dataclasses.replace(state(known=False), done=False)
    new, here = followed(
        early, trained(0.9, 0.5, 0.5), LOCAL, make_cohort(THREE.tolist(), ROSTER_OF_THREE, 3), ScriptedAsk()
    )
    assert new is early
    assert here.all()


def test_who_does_not_answer_is_measured_at_another_visit() -> None:
    found = looked(state(known=False), THREE, LOCAL, ScriptedAsk([fitted({}), fitted({})]))
    assert not len(found.ids)
    new, _ = followed(
        state(known=False),
        trained(0.5, 0.5, 0.5),
        LOCAL,
        make_cohort(THREE.tolist(), ROSTER_OF_THREE, 3),
        ScriptedAsk([fitted({}), fitted({})]),
    )
    assert not len(new.looks.ids)


def test_other_ways_to_cluster_measure_nobody() -> None:
    """Only `when: drift` asks for halves: a round of `once` is one visit."""
    method = Composed(representation="all", k=1, when="once", local=LOCAL)
    ask = ScriptedAsk(fitted({2: (1.0, 1.0), 5: (1.0, 1.0), 8: (1.0, 1.0)}))
    start = Kit.fresh(torch.zeros(1, 2), TWO.part("all"))
    assert method.round(start, make_cohort(THREE.tolist(), ROSTER_OF_THREE), ask).done
    assert len(ask.asked) == 1
