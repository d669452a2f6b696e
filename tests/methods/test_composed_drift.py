"""`when: drift` of a composed method: two halves of a client are measured once, and again where its loss has risen."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import pytest
import torch
from scripted import TWO, ScriptedAsk, fitted, make_cohort, make_roster, scored

from coterie.core.local import Local
from coterie.core.references import All
from coterie.core.tables import ByClient
from coterie.core.tasks import Fitted
from coterie.methods.composed import Composed, Kit, followed, looked

ROSTER = make_roster({2: 10, 5: 10, 8: 10})
IDS = torch.tensor([2, 5, 8])
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
        labels=ByClient(IDS, torch.tensor([0, 0, 1])),
        means=torch.zeros(2, 2),
        done=True,
        last=ByClient(IDS, torch.full((3,), 0.5)),
        worst=2.0,
        looks=ByClient(IDS, pairs) if known else kit.looks,
    )


def test_everyone_is_measured_once_after_the_clustering_from_the_first_model() -> None:
    first = looks(dict.fromkeys(IDS.tolist(), (0.0, 0.0))), looks(dict.fromkeys(IDS.tolist(), (1.0, 0.0)))
    ask = ScriptedAsk(list(first))
    new, here = followed(state(known=False), trained(0.5, 0.5, 0.5), LOCAL, make_cohort(IDS.tolist(), ROSTER, 3), ask)
    one, two = ask.asked[0]
    assert isinstance(one.start, All)
    assert torch.equal(one.start.theta, torch.zeros(2))
    assert [(fit.half, fit.keep, fit.send, fit.sketch) for fit in (one, two)] == [(h, False, False, 2) for h in (0, 1)]
    assert (one.local.steps, one.local.epochs, one.local.lr, one.local.keep_optimizer) == (50, None, 0.5, False)
    assert torch.equal(new.looks.values, state().looks.values)
    assert here.all()
    again, _ = followed(new, trained(0.5, 0.5, 0.5), LOCAL, make_cohort(IDS.tolist(), ROSTER, 4), ScriptedAsk())
    assert torch.equal(again.looks.values, new.looks.values)  # and nobody is asked


@pytest.mark.parametrize("elsewhere", [True, False])
def test_of_a_small_rise_two_halves_decide(elsewhere: bool) -> None:
    now = (11.0, 10.0) if elsewhere else (0.5, 0.5)
    pair = [looks({2: (now[0], 0.0)}), looks({2: (now[1], 0.0)})]
    fresh = [looks({2: (7.0, 0.0)}), looks({2: (8.0, 0.0)})]
    ask = ScriptedAsk(scored({2: (0.9, 0.6)}), pair, *([fresh] if elsewhere else []))
    cohort = make_cohort(IDS.tolist(), ROSTER, 3)
    new, here = followed(state(), trained(0.9, 0.5, 0.5), LOCAL, cohort, ask)
    assert new.labels.at(IDS).tolist() == ([1, 0, 1] if elsewhere else [0, 0, 1])
    assert here.tolist() == [not elsewhere, True, True]  # who has moved was trained from the wrong model
    assert len(cohort.counted) == elsewhere
    assert new.looks.at(IDS)[0].tolist() == ([[7.0, 0.0], [8.0, 0.0]] if elsewhere else [[0.0, 0.0], [1.0, 0.0]])
    assert new.done


def test_a_jump_needs_no_halves() -> None:
    fresh = [looks({2: (7.0, 0.0)}), looks({2: (8.0, 0.0)})]
    ask = ScriptedAsk(scored({2: (1.9, 0.3)}), fresh)
    new, _ = followed(state(), trained(1.9, 0.5, 0.5), LOCAL, make_cohort(IDS.tolist(), ROSTER, 3), ask)
    assert new.labels.at(IDS).tolist() == [1, 0, 1]


def test_before_the_clustering_nobody_is_measured() -> None:
    early = dataclasses.replace(state(known=False), done=False)
    new, here = followed(early, trained(0.9, 0.5, 0.5), LOCAL, make_cohort(IDS.tolist(), ROSTER, 3), ScriptedAsk())
    assert new is early
    assert here.all()


def test_who_does_not_answer_is_measured_at_another_visit() -> None:
    found = looked(state(known=False), IDS, LOCAL, ScriptedAsk([fitted({}), fitted({})]))
    assert not len(found.ids)
    new, _ = followed(
        state(known=False),
        trained(0.5, 0.5, 0.5),
        LOCAL,
        make_cohort(IDS.tolist(), ROSTER, 3),
        ScriptedAsk([fitted({}), fitted({})]),
    )
    assert not len(new.looks.ids)


def test_other_ways_to_cluster_measure_nobody() -> None:
    """Only `when: drift` asks for halves: a round of `once` is one visit."""
    method = Composed(representation="all", k=1, when="once", local=LOCAL)
    ask = ScriptedAsk(fitted({2: (1.0, 1.0), 5: (1.0, 1.0), 8: (1.0, 1.0)}))
    start = Kit.fresh(torch.zeros(1, 2), TWO.part("all"))
    assert method.round(start, make_cohort(IDS.tolist(), ROSTER), ask).done
    assert len(ask.asked) == 1
