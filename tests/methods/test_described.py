"""Methods that cluster by what clients say of their data, worked out by hand with scripted answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

import coterie
from conftest import linear
from coterie import FLUX, PACFL, FedClust, Fielding
from coterie.clustering.linkage import elbow
from coterie.clustering.similarity import subspace_angles
from coterie.core.references import All
from coterie.core.tables import ByClient
from coterie.core.tasks import Describe, Fit
from coterie.data import Pathological, Rotated
from coterie.methods.flux import scaled
from coterie.methods.personal import Personalised
from coterie.methods.personal_ask import Split
from coterie.testing import ScriptedAsk, fitted, make_cohort, make_roster
from coterie.testing.scripted import described

ROSTER = make_roster({2: 1, 5: 3, 7: 10, 9: 10})
MODEL = linear(1, 2)
EAST, NORTH, BETWEEN = [1.0, 0.0], [0.0, 1.0], [0.8, 0.6]


def begun(method: Any) -> Any:
    return method.init(MODEL, ROSTER, np.random.default_rng(0))


def everyone(round: int = 0) -> Any:
    return make_cohort([2, 5, 7, 9], ROSTER, round)


# ------------------------------------------------------------------------------------------------------------- angles


def test_angles_between_subspaces() -> None:
    one, other = torch.tensor([[[1.0, 0, 0], [0, 1, 0]]]), torch.tensor([[[0, 0.6, 0.8], [-1.0, 0, 0]]])
    # U V^T = (0, -1; 0.6, 0): cosines 1 and 0.6; of corresponding vectors 0 and 0.
    assert subspace_angles(one, other, "smallest").item() == pytest.approx(0, abs=1e-4)
    assert subspace_angles(one, other, "sum").item() == pytest.approx(180)
    assert subspace_angles(one, -one, "sum").item() == pytest.approx(0, abs=1e-4)  # a direction has no sign
    alone = torch.tensor([[[1.0, 0, 0], [0, 0, 0]]])
    assert subspace_angles(one, alone, "sum").item() == pytest.approx(90)  # what only one has
    assert subspace_angles(alone, alone, "sum").item() == pytest.approx(0, abs=1e-4)  # what neither has
    apart = torch.tensor([[[1.0, 0, 0]], [[0, 1.0, 0]]])
    assert subspace_angles(apart, apart, "smallest").tolist() == [[0, 90], [90, 0]]


def test_vectors_of_several_labels_are_made_orthonormal_before_the_smallest_angle() -> None:
    """The plane of x and y, and one of a direction at 30 degrees from x and of the fourth axis.

    The vectors within each are at 36.9 degrees. As they are, U V^T = (.87, .69; .69, .55) has norm 1.42: angle 0.
    """
    along = torch.tensor([3**0.5 / 2, 0, 0.5, 0])
    plane = torch.tensor([[[1.0, 0, 0, 0], [0.8, 0.6, 0, 0]]])
    other = torch.stack([along, 0.8 * along + torch.tensor([0, 0, 0, 0.6])])[None]
    assert subspace_angles(plane, other, "smallest", orthonormal=False).item() == pytest.approx(30, abs=1e-3)
    twice = torch.cat([along[None], along[None], torch.zeros(1, 4)])[None]  # one direction, two vectors, and none
    assert subspace_angles(plane, twice, "smallest", orthonormal=False).item() == pytest.approx(30, abs=1e-3)
    beside = torch.tensor([[[0, 0, 1.0, 0], [0, 0, 1.0, 0]]])
    assert subspace_angles(plane, beside, "smallest", orthonormal=False).item() == pytest.approx(90, abs=1e-3)


def test_the_smallest_principal_angle_is_no_larger_than_any_between_basis_vectors() -> None:
    rng = torch.Generator().manual_seed(0)
    bases = torch.linalg.qr(torch.randn(6, 5, 3, generator=rng)).Q.mT
    pairs = torch.rad2deg(torch.einsum("iqd,jrd->ijqr", bases, bases).clamp(-1, 1).acos()).amin((2, 3))
    assert bool((subspace_angles(bases, bases, "smallest") <= pairs + 0.1).all())


# -------------------------------------------------------------------------------------------------------------- PACFL

WIDE = PACFL(k=2, rank=1, inputs=2)
DIRECTIONS = {2: EAST, 5: NORTH, 7: BETWEEN, 9: NORTH}
TRAINED = {2: [2.0, 0.0], 5: [0.0, 4.0], 7: [4.0, 0.0], 9: [0.0, 8.0]}


def test_pacfl_by_hand() -> None:
    """BETWEEN is at 36.9 degrees from EAST and at 53.1 from NORTH."""
    ask = ScriptedAsk(described(DIRECTIONS), fitted(TRAINED, n=[1, 3, 10, 10], choice=[0, 1, 0, 1]))
    start = begun(WIDE)
    state = WIDE.round(start, everyone(), ask)
    assert state.labels.at(torch.tensor([2, 5, 7, 9])).tolist() == [0, 1, 0, 1]
    torch.testing.assert_close(state.centers, torch.tensor([[42 / 11, 0.0], [0.0, 92 / 13]]))
    describe, fit = ask.asked
    assert (describe.kind, describe.length, describe.on.tolist()) == ("subspace", 2, [2, 5, 7, 9])
    assert torch.equal(fit.start.centers, start.centers.repeat(2, 1))  # both clusters begin at w0


def test_a_newcomer_of_pacfl_joins_at_the_least_mean_angle() -> None:
    ask = ScriptedAsk(described(DIRECTIONS), fitted(TRAINED, choice=[0, 1, 0, 1]), described({11: BETWEEN}))
    state = WIDE.round(begun(WIDE), everyone(), ask)
    # Cluster 0 has EAST and BETWEEN: mean 18.4 degrees; cluster 1 has NORTH twice: 53.1.
    state = WIDE.admit(state, make_cohort([7, 11], ROSTER, 1), ask)
    assert state.labels.at(torch.tensor([11])).tolist() == [0]
    assert ask.asked[-1].on.tolist() == [11]
    assert ask.done


@pytest.mark.parametrize(("threshold", "clusters"), [(1.0, 3), (40.0, 2), (180.0, 1)])
def test_beta_cuts_the_dendrogram(threshold: float, clusters: int) -> None:
    method = replace(WIDE, threshold=threshold)
    state = method.cluster(begun(method), everyone(), ScriptedAsk(described(DIRECTIONS)))
    assert len(state.centers) == clusters


@pytest.mark.parametrize("angle", ["smallest", "sum"])
def test_pacfl_by_label_finds_groups_of_classes(angle: Any) -> None:
    """Each client has several labels, whose singular vectors are far from orthogonal to each other."""
    groups = coterie.federate("digits", Pathological(clients=16), seed=0)
    method = PACFL(classes=10, angle=angle, inputs=64, local=coterie.Local(steps=1))
    assert coterie.run(method, groups, "linear", rounds=1).summary.ari == 1.0


def test_a_beta_below_every_angle_is_local_training() -> None:
    federation = coterie.federate("digits", Rotated(clients=8), seed=0)
    local = coterie.Local(epochs=1, batch="full", lr=0.1, shuffle=False)
    alone = PACFL(threshold=1e-3, local=local)
    method, trained = coterie.run(alone, federation, "linear", rounds=2), coterie.LocalOnly(local=local)
    assert method.assignments.tolist() == list(range(8))
    own = coterie.run(trained, federation, "linear", rounds=2)
    torch.testing.assert_close(method.clients.loss, own.clients.loss)


# ----------------------------------------------------------------------------------------------------------- Fielding

SHARES = {2: [1.0, 0.0], 5: [0.0, 1.0], 7: [0.9, 0.1], 9: [0.1, 0.9]}
FIELD = Fielding(k=2, classes=2)
CHOICE = [0, 1, 0, 1]


def labelled(method: Fielding = FIELD) -> Any:
    ask = ScriptedAsk(described(SHARES), fitted(TRAINED, n=[1, 3, 10, 10], choice=CHOICE))
    return method.round(begun(method), everyone(), ask)


def test_fielding_by_hand() -> None:
    state = labelled()
    assert state.labels.at(torch.tensor([2, 5, 7, 9])).tolist() == CHOICE
    torch.testing.assert_close(state.then, torch.tensor([[0.95, 0.05], [0.05, 0.95]]))
    torch.testing.assert_close(state.centers, torch.tensor([[42 / 11, 0.0], [0.0, 92 / 13]]))


def test_without_drift_labels_stay() -> None:
    state = labelled()
    ask = ScriptedAsk(described(SHARES | {7: [0.86, 0.14]}), fitted(TRAINED, choice=CHOICE))
    after = FIELD.round(state, everyone(1), ask)
    assert torch.equal(after.labels.values, state.labels.values)
    assert torch.equal(after.then, state.then)
    assert after.rows.at(torch.tensor([7]))[0].tolist() == pytest.approx([0.9, 0.1])  # it moved by 0.08, less than 0.1


def test_a_client_that_drifts_moves_to_the_nearest_center_and_no_other() -> None:
    """Centers then: (0.95, 0.05), (0.05, 0.95), 1.8 apart; a third of that is 0.6. Client 7 leaves cluster 0, whose
    center is (1, 0) then, and brings the other to (0.1, 0.9): both move by 0.1."""
    ask = ScriptedAsk(described({7: [0.2, 0.8]}), fitted({7: [1.0, 1.0]}, choice=[1]))
    after = FIELD.round(labelled(), make_cohort([7], ROSTER, 1), ask)
    assert after.labels.at(torch.tensor([2, 5, 7, 9])).tolist() == [0, 1, 1, 1]
    assert after.centers[0].tolist() == pytest.approx([42 / 11, 0.0])  # nobody trained there: it keeps its model
    assert after.then.tolist() == labelled().then.tolist()


def test_centers_that_moved_far_are_clustered_anew_from_the_members_models() -> None:
    """Clients 5, 7 and 9 come to (0.4, 0.6): 7 moves to cluster 1, whose center moves by 0.7, and 0.6 is allowed. The
    clustering then finds {2} and {5, 7, 9}: 7's previous model is that of the cluster it has just come to."""
    state = labelled()
    ask = ScriptedAsk(described({i: [0.4, 0.6] for i in (5, 7, 9)}), fitted({2: [0.0, 0.0]}, choice=[0]))
    after = FIELD.round(state, everyone(1), ask)
    assert after.labels.at(torch.tensor([2, 5, 7, 9])).tolist() == [0, 1, 1, 1]
    torch.testing.assert_close(after.then, torch.tensor([[1.0, 0.0], [0.4, 0.6]]))
    torch.testing.assert_close(ask.asked[-1].start.centers, state.centers)


def test_a_new_cluster_starts_at_the_mean_of_its_members_previous_models() -> None:
    state = replace(labelled(), rows=ByClient(torch.tensor([2, 5, 7, 9]), torch.tensor([EAST, EAST, NORTH, NORTH])))
    after = FIELD.cluster(state, everyone(1))  # 2 and 7 were in cluster 0, 5 and 9 in cluster 1
    assert after.labels.values.tolist() == [0, 0, 1, 1]
    torch.testing.assert_close(after.centers, state.centers.mean(0).repeat(2, 1))


def test_a_newcomer_of_fielding_joins_the_nearest_center() -> None:
    state = FIELD.admit(labelled(), make_cohort([7, 11], ROSTER, 1), ScriptedAsk(described({11: [0.3, 0.7]})))
    assert state.labels.at(torch.tensor([11])).tolist() == [1]


# --------------------------------------------------------------------------------------------------------------- FLUX

SMALL = FLUX(k=2, warmup=0, size=1, classes=1)


def test_flux_by_hand() -> None:
    """Rows are (mean, deviation; of label 0: mean, deviation), each scaled to 0..1 over the clients."""
    rows = {2: [0.0, 1.0, 5.0, 0.0], 5: [10.0, 3.0, 7.0, 0.0], 7: [1.0, 1.0, 5.0, 0.0], 9: [9.0, 3.0, 7.0, 0.0]}
    ask = ScriptedAsk(described(rows), fitted(TRAINED, n=[1, 3, 10, 10], choice=CHOICE), described({11: [6.0, 1.5]}))
    start = begun(SMALL)
    state = SMALL.round(start, everyone(), ask)
    assert state.labels.at(torch.tensor([2, 5, 7, 9])).tolist() == CHOICE
    torch.testing.assert_close(state.means, torch.tensor([[0.05, 0.0], [0.95, 1.0]]))
    assert state.scale.tolist() == [[0, 1], [10, 3]]
    torch.testing.assert_close(state.centers, torch.tensor([[42 / 11, 0.0], [0.0, 92 / 13]]))
    # The newcomer is at (0.6, 0.25): squares 0.365 and 0.685.
    state = SMALL.admit(state, make_cohort([11], ROSTER, 1), ask)
    assert state.labels.at(torch.tensor([11])).tolist() == [0]
    first, _, newcomer = ask.asked
    assert isinstance(first, Describe)
    assert (first.classes, newcomer.classes) == (1, 0)  # a newcomer's labels play no part
    assert torch.equal(newcomer.model.theta, start.centers[0])  # and its encoder is the one of the clustering


def test_flux_warms_up_as_fedavg() -> None:
    method = replace(SMALL, warmup=1)
    state = method.round(begun(method), everyone(), ScriptedAsk(fitted(TRAINED, n=[1, 3, 10, 10], choice=[0] * 4)))
    torch.testing.assert_close(state.centers, torch.tensor([[42 / 24, 92 / 24]]))
    assert isinstance(method.predictor(state).models[0], All)


def test_a_block_that_does_not_vary_is_zeros() -> None:
    points, low, high = scaled(torch.tensor([[3.0, 3.0, 1.0, 2.0], [3.0, 3.0, 1.5, 1.0]]), 2)
    assert points.tolist() == [[0, 0, 0, 1], [0, 0, 0.5, 0]]
    assert (low.tolist(), high.tolist()) == ([3, 1], [3, 2])


def test_the_elbow_of_nearest_neighbour_distances() -> None:
    """Points 0, 1, 2, 3 and 23: nearest neighbours are at 1, 1, 1, 1 and 20; the elbow is the last 1."""
    at = torch.tensor([0.0, 1, 2, 3, 23])
    assert elbow((at[:, None] - at).abs()) == 1.0
    even = torch.tensor([0.0, 2, 4])
    assert elbow((even[:, None] - even).abs()) == 2.0
    assert elbow(torch.zeros(1, 1)) == 0.0


def test_elbow_leaves_who_is_far_from_everybody_alone() -> None:
    method = replace(SMALL, k="elbow", classes=0)
    near = torch.tensor([[0.0, 0], [0.1, 0], [0.2, 0], [1.0, 1.0], [1.0, 0.9], [0.0, 1.0]])
    assert method.labels(near, everyone()).tolist() == [0, 0, 0, 1, 1, 2]


def test_equal_descriptions_are_one_cluster() -> None:
    method = replace(SMALL, k="elbow")
    state = method.cluster(begun(method), everyone(), ScriptedAsk(described({i: [1.0] * 4 for i in (2, 5, 7, 9)})))
    assert len(state.centers) == 1


# ----------------------------------------------------------------------------------------------------------- FedClust


def test_fedclust_compares_the_last_layer_only() -> None:
    """Four numbers, of which the last two are compared: by all four, 2 would be with 5."""
    method = FedClust(k=2)
    state = replace(begun(method), centers=torch.zeros(1, 4), features=torch.tensor([2, 3]))
    models = {2: [9.0, 9, 1, 0], 5: [9.0, 9, 0, 5], 7: [-9.0, 0, 1, 0], 9: [-9.0, 0, 0, 5]}
    state = method.round(state, everyone(), ScriptedAsk(fitted(models, n=[1, 1, 1, 1])))
    assert state.labels.at(torch.tensor([2, 5, 7, 9])).tolist() == CHOICE
    torch.testing.assert_close(state.centers, torch.tensor([[0.0, 4.5, 1, 0], [0.0, 4.5, 0, 5]]))
    ask = ScriptedAsk(fitted({11: [0.0, 0, 0.1, 4]}))
    assert method.admit(state, make_cohort([11], ROSTER, 1), ask).labels.at(torch.tensor([11])).tolist() == [1]
    assert isinstance(ask.asked[0], Fit)
    assert not ask.asked[0].keep


def test_fedclust_takes_its_part_from_the_model() -> None:
    model = coterie.Model(lambda: torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2)))
    state = FedClust(k=2).init(model, ROSTER, np.random.default_rng(0))
    assert state.features.tolist() == list(range(9, 17))


# ---------------------------------------------------------------------------------------------------------- identities


@pytest.mark.parametrize(
    "method",
    [PACFL(k=1), PACFL(threshold=1000.0), Fielding(k=1), FLUX(k=1, warmup=1), FedClust(k=1)],
    ids=lambda m: type(m).__name__,
)
def test_one_cluster_is_fedavg(method: Any) -> None:
    federation = coterie.federate("digits", "rotated", seed=0)
    local = coterie.Local(steps=2, batch="full", lr=0.1, shuffle=False)  # no plan depends on the number of a task
    one, other = (
        coterie.run(m, federation, model="linear", rounds=3, seed=3)
        for m in (replace(method, local=local), coterie.FedAvg(local=local))
    )
    torch.testing.assert_close(one.state.centers[0], other.state)


def test_who_was_never_described_is_not_averaged_in() -> None:
    """A client whose description is missing trains from the mean of the centers and counts for nothing."""
    state = replace(
        begun(SMALL), centers=torch.tensor([[1.0, 1.0], [3.0, 3.0]]), means=torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    )
    state = replace(state, labels=ByClient(torch.tensor([2, 5]), torch.tensor([0, 1])))
    ask = ScriptedAsk(described({7: [0.0, 0.0]}), fitted(TRAINED, choice=[0, 1, 0, 2]))
    after = SMALL.round(state, everyone(4), ask)
    torch.testing.assert_close(after.centers, torch.tensor([[3.0, 0.0], [0.0, 4.0]]))


@pytest.mark.parametrize("partition", [Rotated(clients=24), Pathological(clients=24)], ids=["rotated", "groups"])
def test_newcomers_whose_labels_are_wrong_find_their_clusters(partition: Any) -> None:
    """A third of the clients come after training, with labels drawn at random: they play no part."""
    federation = coterie.federate("digits", partition, seed=0)
    local = coterie.Local(epochs=2, batch=8, lr=0.1)
    first = federation.take([client for client in range(24) if client % 3])
    result = coterie.run(FLUX(local=local), first, "mlp", rounds=6)
    rng = np.random.default_rng(0)
    wrong = [replace(d, y=torch.from_numpy(rng.integers(10, size=len(d.y))), relabel=None) for d in federation.domains]
    late = replace(federation, domains=tuple(wrong)).take(range(0, 24, 3))
    found = result.admit(late).assignments
    assert first.truth is not None
    assert late.truth is not None
    assert adjusted_rand_score(late.truth, found) == 1.0
    named = {int(k): int(t) for k, t in zip(result.assignments, first.truth, strict=True)}
    assert [named[int(k)] for k in found] == late.truth.tolist()
    assert Describe("moments", FLUX().size, All(result.state.encoder)).length <= 0.01 * result.model.size


# ------------------------------------------------------------------------------------------- inside other things


DEMO = coterie.federate("digits", Rotated(clients=12), seed=0)
STEPS = coterie.Local(steps=2, batch=8, lr=0.1)


@pytest.mark.parametrize("attack", ["colluders-as-cluster", "nan", "sign-flip"])
@pytest.mark.parametrize("method", [PACFL(rank=2, local=STEPS), Fielding(local=STEPS), FLUX(warmup=0, local=STEPS)])
def test_hostile_clients_and_a_robust_mean_around_descriptions(method: Any, attack: str) -> None:
    options: dict[str, Any] = {"attack": {"kind": attack, "share": 0.2}, "aggregator": "geometric-median"}
    result = coterie.run(method, DEMO, model="linear", rounds=3, quorum=0.5, **options)
    assert bool(result.state.centers.isfinite().all())
    assert len(result.clients.ids) == 10  # the honest ones are scored


def test_a_client_that_keeps_its_head_describes_by_the_common_one() -> None:
    """All descriptions must be by one model: with the section that everyone began with, not with a client's own."""
    ask = ScriptedAsk([described({2: [0.0]})], [described({2: [0.0]})])
    state = Split(torch.zeros(1), torch.tensor([5.0]))
    joining = Personalised(base=SMALL, section=("bias",)).joining(state, ask)
    joining(Describe("moments", 1, All(torch.zeros(1))))
    joining(Describe("labels", 1))
    ((moments,), (labels,)) = ask.asked
    assert moments.model.personal.own.slot != "personal"
    assert moments.model.personal.own.default.theta.tolist() == [5.0]
    assert moments.model.personal.tune is None
    assert labels.model is None


def test_heads_stay_at_home_inside_clusters_of_descriptions() -> None:
    flux = FLUX(warmup=1, local=STEPS)
    result = coterie.run(Personalised(base=flux, section=("1.bias",)), DEMO, model="linear", rounds=3)
    plain = coterie.run(flux, DEMO, model="linear", rounds=3)
    assert result.summary.clusters == plain.summary.clusters == 4
    assert result.assignments.tolist() == plain.assignments.tolist()  # a bias plays no part in what the layer gets


def test_cam_around_descriptions() -> None:
    result = coterie.run(coterie.CAM(FLUX(warmup=0, local=STEPS), warmup=1, local=STEPS), DEMO, "linear", rounds=3)
    assert result.summary.clusters > 1
