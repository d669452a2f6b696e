"""`coterie.inspect`: federations with a known truth, what it names, and what it refuses."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

import coterie
from conftest import raises
from coterie.core.tasks import Fitted
from coterie.insight import inspect as inspection
from coterie.insight.contrast import contrast
from coterie.insight.inspect import Inspection, answer, compared, expected

NAMES = tuple(f"ward {chr(97 + i)}" for i in range(16))
Clients = list[tuple[np.ndarray, np.ndarray]]


def made(groups: int, clients: int = 16, samples: int = 60, seed: int = 0) -> Clients:
    """Clients whose label depends on a direction; each group has another direction."""
    rng = np.random.default_rng(seed)
    found = []
    for client in range(clients):
        x = rng.normal(size=(samples, 8)).astype(np.float32)
        found.append((x, (x[:, client % groups] > 0).astype(np.int64)))
    return found


def noise(clients: int = 16, samples: int = 6) -> Clients:
    """Labels that have nothing to do with the inputs."""
    rng = np.random.default_rng(1)
    return [(rng.normal(size=(samples, 8)).astype(np.float32), rng.permutation(samples) % 2) for _ in range(clients)]


def looked(clients: Clients, **more: object) -> Inspection:
    data = coterie.Federation.from_arrays(
        clients, names=NAMES[: len(clients)], seed=0, standardise=False, standardise_y=False
    )
    return coterie.inspect(data, "linear", local=coterie.Local(batch=8), engine="batched", workers=1, **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def four() -> Inspection:
    return looked(made(4), explain=True)


def test_a_learning_rate_may_be_found_first() -> None:
    data = coterie.Federation.from_arrays(made(2), seed=0, standardise=False, standardise_y=False)
    local = coterie.Local(batch=8, lr="auto")
    assert coterie.inspect(data, "linear", local=local, engine="batched", workers=1).k == 2


def test_clients_of_one_kind_are_alike() -> None:
    found = looked(made(1))
    assert (found.verdict, found.k, found.advice[0].method) == ("alike", 1, "fedavg")
    assert found.resampled.share(1) == 1
    assert found.resampled.r2 < 0  # two clusters predict worse
    assert found.visible is not None
    assert found.visible <= found.variances.common
    assert "one model serves them all" in answer(found)[0]
    worse = f"{-100 * found.resampled.r2:.0f} % worse than one"
    assert worse in answer(found)[1]
    hardly = dataclasses.replace(found, resampled=dataclasses.replace(found.resampled, r2=0.004))
    assert "no more than 0 % better than one" in answer(hardly)[1]
    assert all(place.margin is None and place.runner_up is None for place in found.places)


def test_four_kinds_are_four_clusters_with_high_confidence(four: Inspection) -> None:
    assert (four.verdict, four.k, four.sizes) == ("clusters", 4, (4, 4, 4, 4))
    assert [place.cluster for place in four.places] == [0, 1, 2, 3] * 4
    assert four.resampled.share(4) > 0.5
    assert four.resampled.counts[0][0] == 4
    assert four.resampled.low > 0.2
    assert [advice.method for advice in four.advice] == ["halves", "wecfl"]
    assert four.advice[1].settings == (("k", 4),)
    assert four.visible is None


def test_labels_of_noise_say_nothing() -> None:
    found = looked(noise())
    assert (found.verdict, found.k) == ("unknown", 1)
    assert answer(found)[0].startswith("Too few samples per client to tell (median 5)")
    assert "would not be seen either" in answer(found)[1]
    assert found.advice[0].method == "halves"


def test_everyone_differs() -> None:
    rng = np.random.default_rng(0)
    clients = []
    for _ in range(16):
        x, w = rng.normal(size=(120, 8)).astype(np.float32), rng.normal(size=8)
        clients.append((x, (x @ w > 0).astype(np.int64)))
    found = looked(clients)
    assert found.verdict == "individual"
    assert [advice.method for advice in found.advice] == [
        "local",
        "ditto",
    ]  # samples enough
    assert found.k > 16 / 3
    assert "Hardly two of the 16 clients are alike" in answer(found)[0]


def test_clients_go_by_their_names(four: Inspection) -> None:
    assert [place.name for place in four.places] == list(NAMES)
    assert four.who(3) == "client 'ward d'"
    doubtful = dataclasses.replace(four.places[3], margin=1.0, runner_up=0)
    alone = dataclasses.replace(four.places[4], alone=True, margin=None, runner_up=None)
    changed = dataclasses.replace(four, places=(*four.places[:3], doubtful, alone, *four.places[5:]))
    said = "\n".join(answer(changed))
    assert "Doubtful, less than 2 deviations of noise from another cluster: client 'ward d'." in said
    assert "Alone in a cluster: client 'ward e'." in said
    assert "Nobody is doubtful" in str(four)


def test_who_is_typical_is_nearest_to_the_others(four: Inspection) -> None:
    """Two of each cluster of four: at most three, and at most half."""
    assert [sum(p.typical for p in four.places if p.cluster == c) for c in range(4)] == [2, 2, 2, 2]


def test_what_distinguishes_clusters_is_told_only_if_asked(four: Inspection) -> None:
    assert looked(made(2), steps=(10,)).contrasts is None
    assert four.contrasts is not None
    assert [one.cluster for one in four.contrasts] == [0, 1, 2, 3]


def test_contrasts_by_hand() -> None:
    """Cluster 0: labels 0 0 1, inputs 0 0 3. Cluster 1: label 1, input 1. All: half of each label, inputs of mean 1."""
    from coterie.insight.contrast import contrasts

    x = [np.array([[0.0], [0.0], [3.0], [9.0]], dtype=np.float32), np.array([[1.0], [9.0]], dtype=np.float32)]
    y = [np.array([0, 0, 1, 0]), np.array([1, 0])]
    cut = [(x[0][:3], y[0][:3], x[0][3:], y[0][3:]), (x[1][:1], y[1][:1], x[1][1:], y[1][1:])]
    first, second = contrasts(coterie.Federation.from_arrays(cut, standardise=False, standardise_y=False), {0: 0, 1: 1})
    assert [(d.what, d.everywhere) for d in first.labels] == [("label 0", 0.5), ("label 1", 0.5)]
    assert [d.here for d in first.labels] == pytest.approx([2 / 3, 1 / 3])
    assert second.labels[0].here == 0
    assert (first.inputs[0].here, first.inputs[0].everywhere) == (1, 1)
    assert (second.inputs[0].here, second.inputs[0].deviations) == (1, 0)
    said = "Cluster 1: label 0 0 % (all: 50 %); label 1 100 % (all: 50 %)."  # and not its input, which is as everywhere
    assert contrast(second) == said


def test_what_a_contrast_means(four: Inspection) -> None:
    """These clusters have other rules, but the same labels and inputs. The largest difference speaks."""
    from coterie.insight.contrast import Contrast, Difference

    assert compared(four)[-1].endswith("the clusters differ in how the two go together.")
    assert compared(four)[0] == "Cluster 0: labels and inputs as everywhere."
    assert compared(dataclasses.replace(four, contrasts=None)) == []
    labels = Contrast(0, (Difference("label 1", 0.9, 0.5, 0.0),), (Difference("age", 1.0, 1.0, 0.1),))
    assert "compare with fedavg" in compared(dataclasses.replace(four, contrasts=(labels,)))[-1]
    inputs = dataclasses.replace(labels, inputs=(Difference("age", 2.0, 1.0, 0.6),))
    said = compared(dataclasses.replace(four, contrasts=(inputs,)))
    assert said == [
        "Cluster 0: label 1 90 % (all: 50 %); inputs: age +0.60 deviations.",
        "The clusters have different inputs and different shares of labels.",
    ]


def test_a_regression_has_targets_instead_of_labels() -> None:
    rng = np.random.default_rng(0)
    clients = []
    for client in range(8):
        x = rng.normal(size=(60, 3)).astype(np.float32)
        clients.append((x, (x[:, 0] * (1 if client % 2 else -1) + 5 * (client % 2)).astype(np.float32)))
    found = coterie.inspect(clients, "linear", explain=True)
    assert found.k == 2
    assert found.contrasts is not None
    assert found.contrasts[1].labels[0].what == "target"
    assert found.contrasts[1].labels[0].deviations > 0.5


def test_the_depth_is_that_of_the_largest_r2(four: Inspection) -> None:
    several = looked(made(4), steps=(1, 10, 50))
    assert [d.steps for d in several.depths] == [1, 10, 50]
    best = max(several.depths, key=lambda d: d.r2)
    assert (several.depth, several.k, several.resampled.r2) == (best.steps, best.k, best.r2)
    assert f"updates of {best.steps} local steps were used (tried: 1, 10, 50)." in str(several)
    assert "tried" not in str(four)


def test_by_default_it_looks_as_halves_does(four: Inspection) -> None:
    """One rule: the clusters of an inspection are those that a run of `halves` finds in its first round."""
    assert four.depth == coterie.Halves().look
    data = coterie.Federation.from_arrays(made(4), names=NAMES, seed=0)
    method = coterie.Halves(local=coterie.Local(batch=8), trial=False)
    assert coterie.run(method, data, "linear", rounds=1).assignments.tolist() == list(four.assignments.values())


def test_words_do_not_say_more_than_the_resamples(four: Inspection) -> None:
    unsure = dataclasses.replace(
        four, resampled=dataclasses.replace(four.resampled, counts=((3, 0.5), (4, 0.25), (6, 0.2), (9, 0.05)))
    )
    said = answer(unsure)
    assert said[0] == (
        "The 16 clients form clusters, but how many is not clear: 4 here, 3 to 6 in 90 % of bootstrap resamples."
    )
    assert not any("Nobody is doubtful" in line for line in said)
    assert any(line.startswith("If there are 4 clusters, it is clear who is in which:") for line in said)


def test_where_many_are_doubtful_there_are_no_clear_clusters(four: Inspection) -> None:
    rule = inspection._verdict
    doubtful = [dataclasses.replace(place, margin=1.0) for place in four.places]
    shown, spread = four.variances, four.resampled
    assert rule(4, (*doubtful[:5], *four.places[5:]), spread, shown, None) == "clusters"
    assert rule(4, (*doubtful[:6], *four.places[6:]), spread, shown, None) == "weak"
    weak = dataclasses.replace(four, verdict="weak", places=(*doubtful[:6], *four.places[6:]))
    assert answer(weak)[0] == "The 16 clients differ, but not clearly in clusters."
    assert "6 of the 16 would lie between two of them: they differ by degrees." in answer(weak)


def test_what_is_advised_where_clients_differ(four: Inspection) -> None:
    """One model has an error of 10 and a client alone of 1 (a whole update: half the noise): both together 10/11."""
    shown = dataclasses.replace(four.variances, total=10.0, within=0.0, noise=2.0, clients=10**9, k=1)
    assert inspection._personal("individual", shown) == pytest.approx(10 / 11)
    assert [a.method for a in inspection._advice("individual", 9, shown)] == ["local", "ditto"]  # 1 is 10 % more
    noisier = dataclasses.replace(shown, noise=4.0)
    assert [a.method for a in inspection._advice("individual", 9, noisier)] == ["ditto", "local"]
    assert [a.method for a in inspection._advice("weak", 3, shown)] == ["halves", "ditto"]
    alike = dataclasses.replace(shown, within=10.0, noise=40.0)
    assert [a.method for a in inspection._advice("weak", 3, alike)] == ["halves"]


def test_the_curve_is_relative_to_one_cluster(four: Inspection) -> None:
    assert four.risks[0] == 1
    assert len(four.risks) == len(four.errors) == 16
    assert 1 - four.risks[3] == pytest.approx(four.resampled.r2)
    assert len(four.tree) == len(four.heights) == 15


def test_the_expectation_is_marked_as_an_estimate(four: Inspection) -> None:
    said, errors = expected(four), four.variances.errors
    assert said.startswith("Estimate, not accuracy")
    assert f"4 cluster models {100 * errors.clusters / errors.one:.0f}" in said
    assert errors.clusters < errors.local < errors.one
    still = dataclasses.replace(four.variances, total=0.0, within=0.0, noise=0.0)
    assert "cannot be estimated" in expected(dataclasses.replace(four, variances=still))


def test_small_clients_are_named_and_left_out() -> None:
    clients = made(2)
    clients[5] = (clients[5][0][:3], np.array([0, 1, 0]))
    found = looked(clients)
    assert found.small == (5,)
    assert 5 not in found.assignments
    assert len(found.places) == 15
    assert "Not measured, with fewer than 4 training samples: client 'ward f'." in str(found)


def test_too_few_clients_cannot_be_compared() -> None:
    with raises("inspection-impossible", match="3 of 3 clients have at least 4 training samples"):
        looked(made(1)[:3])
    with raises("inspection-impossible", match="0 of 16 clients"):
        looked(noise(samples=3))


@pytest.mark.parametrize("steps", [(), (0,), (1.5,), (True,)])
def test_steps_are_numbers(steps: tuple[float, ...]) -> None:
    with raises("argument-invalid", match="numbers of local steps"):
        looked(made(1), steps=steps)


def test_an_argument_that_does_not_exist_is_named() -> None:
    with raises("argument-unknown", match="explain"):
        looked(made(1), explan=True)


def test_of_many_clients_some_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection.inspect_clients, "__kwdefaults__", {"explain": False, "most": 10})
    found = looked(made(2))
    assert (len(found.places), found.clients) == (10, 16)
    assert "10 of 16 clients, drawn at random, were asked." in str(found)


def test_nothing_is_kept_and_the_same_seed_gives_the_same_answer() -> None:
    one, other = looked(made(2)), looked(made(2))
    assert (one.places, one.resampled, one.risks) == (other.places, other.resampled, other.risks)


def test_weak_differences_are_called_so() -> None:
    """The interval of R2 reaches below 0."""
    rng = np.random.default_rng(0)
    from coterie.insight.inspect import _inspection, _Look  # the rule itself, on updates made here

    true = np.where(np.arange(12) % 2, 0.9, -0.9)[:, None] * np.eye(1, 6)
    a, b = (torch.from_numpy(true + rng.normal(size=(12, 6))) for _ in range(2))
    ids, n, loss = torch.arange(12), torch.full((12,), 9), torch.zeros(12)
    look = _Look(10, Fitted(ids, n, loss, sketch=a), Fitted(ids, n, loss, sketch=b))
    found = _inspection([look], rng, None, 12, (), ())
    assert found.resampled.low <= 0
    if found.k > 1:
        assert found.verdict == "weak"
        assert "not clearly in clusters" in answer(found)[0]
    else:
        assert found.verdict in ("alike", "unknown")
