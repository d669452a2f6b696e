"""What one client gets of a visit that is meant for many: its own rows, mixtures and numbers, by hand."""

from __future__ import annotations

import torch

from coterie.client.contract import Moment
from coterie.core.tables import ByClient
from coterie.core.tasks import All, Fit, Local, Mix, Pick, Row, Task
from coterie.engines.contract import Visit
from coterie.network.messages import for_client

IDS = torch.tensor([3, 8])
CENTERS = torch.tensor([[1.0, 0.0], [0.0, 2.0]])


def sent(client: int, *tasks: Task) -> list[Fit]:
    """The trainings of a visit as this client gets them."""
    found = for_client(Visit(tasks, IDS, Moment(0, 0, 0)), client)
    return [task for task in found if isinstance(task, Fit)]


def table(*rows: list[float]) -> ByClient:
    return ByClient(IDS, torch.tensor(rows))


def test_a_client_gets_its_own_row_and_the_rows_number() -> None:
    fit = Fit(Pick(CENTERS, ByClient(IDS, torch.tensor([1, 0]))), local=Local())
    for client, row in ((3, 1), (8, 0)):
        (mine,) = sent(client, fit)
        assert isinstance(mine.start, Row)
        assert mine.start.row == row
        assert torch.equal(mine.start.theta, CENTERS[row])


def test_two_mixtures_of_the_same_rows_are_two_vectors() -> None:
    """Client 3: 1/2 (1, 0) + 1/2 (0, 2) = (0.5, 1), and then all of the second row. Client 8: the first row, twice."""
    even, second = table([0.5, 0.5], [1.0, 0.0]), table([0.0, 1.0], [1.0, 0.0])
    fits = [Fit(Mix(CENTERS, weights), local=Local()) for weights in (even, second)]
    for client, expected in ((3, [[0.5, 1.0], [0.0, 2.0]]), (8, [[1.0, 0.0], [1.0, 0.0]])):
        starts = [fit.start for fit in sent(client, *fits)]
        assert [start.theta.tolist() for start in starts if isinstance(start, All)] == expected


def test_a_mixture_that_is_used_twice_is_one_vector() -> None:
    """So that it is sent once."""
    mix = Mix(CENTERS, table([0.5, 0.5], [1.0, 0.0]))
    one, other = (fit.start for fit in sent(3, Fit(mix, local=Local()), Fit(mix, local=Local(), keep=False)))
    assert one is other


def test_a_client_gets_its_own_strength_of_the_proximal_term() -> None:
    fit = Fit(All(CENTERS[0]), local=Local(), anchor=All(CENTERS[1]), mu=ByClient(IDS, torch.tensor([0.5, 2.0])))
    assert [sent(client, fit)[0].mu for client in (3, 8)] == [0.5, 2.0]
