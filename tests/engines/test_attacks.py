"""What hostile clients answer: by hand, and who they are."""

from __future__ import annotations

import torch
from torch import Tensor

from conftest import raises
from coterie import Attack, AttackView, Lie, Local
from coterie.client.contract import Memory, Moment
from coterie.core.references import Best
from coterie.core.registry import ANY_CODE
from coterie.core.tables import ByClient
from coterie.core.tasks import Describe, Described, Fit, Fitted, Score, Scored
from coterie.engines.contract import Outcome, Visit
from coterie.layers.attack import Hostile

CENTERS = torch.tensor([[0.0, 0.0], [10.0, 10.0]])
IDS = torch.arange(5)
TRUTH = ByClient(IDS, torch.tensor([0, 0, 1, 1, 1]))
UPDATES = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0], [0.0, 2.0], [0.0, 2.0]])
CHOICE = torch.tensor([0, 0, 1, 1, 1])


class Fixed:
    """An engine whose clients always answer the same."""

    memory = Memory()

    def visit(self, visit: Visit) -> Outcome:
        fitted = Fitted(IDS, IDS + 10, torch.zeros(5), CENTERS[CHOICE] + UPDATES, CHOICE, UPDATES * 2)
        scored = Scored(IDS, IDS + 10, torch.tensor([[1.0, 9.0], [3.0, 9.0], [9.0, 2.0], [9.0, 2.0], [9.0, 2.0]]))
        return Outcome((fitted, scored), ())

    def close(self) -> None: ...


def said(attack: Attack, who: int = 4) -> tuple[Fitted, Scored, Outcome]:
    """The answers when client `who` is hostile."""
    layer = Hostile(attack, 0, torch.tensor([who]), TRUTH)
    tasks = (Fit(Best(CENTERS), Local(steps=1), sketch=2), Score(CENTERS))
    outcome = layer.visit(Visit(tasks, IDS, Moment(0, 0, 0)), Fixed().visit)
    fitted, scored = outcome.replies
    assert isinstance(fitted, Fitted)
    assert isinstance(scored, Scored)
    return fitted, scored, outcome


def update(attack: Attack) -> list[float]:
    fitted, _, _ = said(attack)
    assert torch.equal(fitted.models[:4], (CENTERS[CHOICE] + UPDATES)[:4])
    found: list[float] = (fitted.models[4] - CENTERS[1]).tolist()
    return found


def test_single_attacks_by_hand() -> None:
    """Its own update is [0, 2]; the honest mean is [1, 1], their deviation [sqrt(1.5), 1] with correction 0."""
    assert update(Attack(kind="sign-flip")) == [0.0, -20.0]
    assert update(Attack(kind="scaling", scale=3)) == [0.0, 6.0]
    assert update(Attack(kind="free-rider")) == [0.0, 0.0]
    assert update(Attack(kind="inner-product")) == [-2.0, -2.0]
    torch.testing.assert_close(torch.tensor(update(Attack(kind="alie", scale=2))), torch.tensor([1 - 6**0.5, -1.0]))
    noise = torch.tensor(update(Attack(kind="gaussian", scale=5)))
    torch.testing.assert_close(float(noise.norm()), 10.0, rtol=1e-5, atol=0)


def test_a_sketch_lies_as_the_model_does() -> None:
    fitted, _, _ = said(Attack(kind="sign-flip", scale=1))
    assert fitted.sketch is not None
    assert fitted.sketch.tolist() == [*(2 * UPDATES[:4]).tolist(), [0.0, -4.0]]


def test_colluders_claim_the_victims_row_and_score_as_they_do() -> None:
    """The victims' mean update is [2, 0], from row 0."""
    fitted, scored, _ = said(Attack(kind="colluders-as-cluster", scale=3))
    assert fitted.chosen.tolist() == [0, 0, 1, 1, 0]
    assert fitted.models[4].tolist() == [-6.0, 0.0]
    assert scored.scores[4].tolist() == [2.0, 9.0]


class Describing(Fixed):
    """An engine whose clients describe their data."""

    def visit(self, visit: Visit) -> Outcome:
        return Outcome((Described(IDS, IDS + 10, CENTERS[CHOICE] + UPDATES),), ())


def test_colluders_describe_their_data_as_a_victim_does_and_others_honestly() -> None:
    found = {}
    for kind in ("colluders-as-cluster", "sign-flip", "nan"):
        layer = Hostile(Attack(kind=kind), 0, torch.tensor([4]), TRUTH)
        visit = Visit((Describe("labels", 2),), IDS, Moment(0, 0, 0))
        (reply,) = layer.visit(visit, Describing().visit).replies
        assert isinstance(reply, Described)
        assert torch.equal(reply.rows[:4], (CENTERS[CHOICE] + UPDATES)[:4])
        found[kind] = reply.rows[4].tolist()
    assert found == {"colluders-as-cluster": [1.0, 0.0], "sign-flip": [10.0, 12.0], "nan": [10.0, 12.0]}


def test_nan_is_missing_with_the_reason() -> None:
    fitted, _, outcome = said(Attack(kind="nan"))
    assert fitted.ids.tolist() == [0, 1, 2, 3]
    assert [(m.client, m.diverged) for m in outcome.missing] == [(4, True)]


def greedy(view: AttackView) -> Lie:
    """One's own attack: what the victims do, five times."""
    return Lie(5 * view.updates[view.victims].sum(0, keepdim=True))


def wrong(view: AttackView) -> Tensor:
    """Forgets what to return."""
    return view.updates


def test_an_attack_of_ones_own() -> None:
    def trusted(name: str) -> Attack:
        return Attack(kind=Attack(kind=name).attacker(ANY_CODE))

    assert update(trusted(f"{__name__}:greedy")) == [20.0, 0.0]
    with raises("component-invalid", match=r"return Lie\(updates\) with updates \(1, 2\)"):
        said(trusted(f"{__name__}:wrong"))
    with raises("component-not-found", match="nowhere"):
        trusted("nowhere:nothing")
    with raises("trust-needed"):
        said(Attack(kind=f"{__name__}:greedy"))


def test_mistakes_of_ones_own_attack_are_one_line() -> None:
    def broken(view: AttackView) -> Lie:
        raise ZeroDivisionError("no scale")

    def claiming(choice: object) -> Attack:
        return Attack(kind=lambda view: Lie(view.updates[view.hostile], choice))  # type: ignore[arg-type]

    with raises("component-failed", match="broken' failed: ZeroDivisionError: no scale"):
        said(Attack(kind=broken))
    for wrong in (torch.tensor([2]), torch.tensor([-1]), torch.tensor([0, 1]), torch.tensor([0.0]), 1):
        with raises("component-invalid", match="has 1 integers, a row of the server's models"):
            said(claiming(wrong))
    fitted, _, _ = said(claiming(torch.tensor([0])))
    assert fitted.choice is not None
    assert fitted.choice.tolist() == [0, 0, 1, 1, 0]


def test_who_is_hostile_is_drawn_from_the_seed() -> None:
    ids = torch.arange(40)
    drawn = [Attack(share=0.2).hostile(seed, ids).tolist() for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] == sorted(drawn[0])
    assert drawn[0] != drawn[2]
    assert len(drawn[0]) == 8
    assert set(Attack(share=0.1).hostile(0, ids).tolist()) < set(drawn[0])
    assert Attack(share=0.0).hostile(0, ids).tolist() == []
    honest = [client for client in ids.tolist() if client not in drawn[0]]
    fewer = torch.tensor([client for client in ids.tolist() if client != honest[0]])
    assert Attack(share=0.2).hostile(0, fewer).tolist() == drawn[0]  # by id: who else is there does not change it


def test_mistakes_are_named() -> None:
    with raises("argument-invalid", match="unknown attack 'sign-flp'. Did you mean 'sign-flip'"):
        Attack(kind="sign-flp")
    with raises("argument-invalid", match="share"):
        Attack(share=1.0)
