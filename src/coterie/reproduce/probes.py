"""What is looked at once a run is trained, where a paper's table is not about the clients' own test data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.catalogue import DATASETS
from coterie.config import RunConfig
from coterie.data.federation import Federation
from coterie.data.synthetic import SyntheticRegression
from coterie.methods.fedgroup import FedGroup
from coterie.methods.fedsoft import Soft
from coterie.methods.stocfl import Stochastic
from coterie.model import Model
from coterie.reproduce.cell import Probe
from coterie.result import Result
from coterie.seeds import Purpose, generator
from coterie.tasks import All, Best, Pick

FRESH = 1000  # samples of each distribution that FedSoft's centers are tested on


def look(probe: Probe, result: Result[Any], config: RunConfig) -> Mapping[str, Any]:
    """The numbers of a probe, by name."""
    match probe:
        case "":
            return {}
        case "centers":
            return centers_on_distributions(result, config)
        case "clusters":
            return clusters_on_tests(result, whole=False)
        case "clusters_on_all":
            return clusters_on_tests(result, whole=True)
        case "likeness":
            return likeness(result)
        case "letters":
            return centers_on_domains(result)
        case "proximity":
            return proximity(result)


def _accuracy(model: Model, theta: Tensor, x: Tensor, y: Tensor) -> float:
    return float((model.replica().load(theta).logits(x).argmax(1) == y).double().mean())


def centers_on_distributions(result: Result[Any], config: RunConfig) -> dict[str, Any]:
    """FedSoft, Tables 1 and 3: the squared error of every center on fresh samples of every distribution."""
    made = DATASETS.build(config.data.name, config.data.params)
    assert isinstance(made, SyntheticRegression)
    thetas = made.thetas(generator(config.seed, Purpose.PARTITION))
    centers = result.state.centers if isinstance(result.state, Soft) else _models(result)
    rng = generator(config.seed, Purpose.EVALUATION, 1)
    errors = []
    for theta in thetas:
        x = rng.normal(size=(FRESH, made.dimension))
        y = torch.from_numpy(x @ theta + rng.normal(0, made.noise, FRESH)).float()
        inputs = torch.from_numpy(x).float()
        said = [result.model.replica().load(center).logits(inputs)[:, 0] for center in centers]
        errors.append([float((out - y).square().mean()) for out in said])
    return {"mse": errors, "apart": float(np.sum((thetas[0] - thetas[-1]) ** 2))} | mixtures(result)


def centers_on_domains(result: Result[Any]) -> dict[str, Any]:
    """FedSoft, Table 2: every center on every distribution, and clients' own models on their own training data."""
    from coterie.asking import Asker
    from coterie.engines.sequential import Sequential
    from coterie.threads import one_thread

    centers = result.state.centers if hasattr(result.state, "centers") else result.state
    tests = [result.federation.seen_through(d, "test") for d in range(len(result.federation.domains))]
    scores = [[_accuracy(result.model, center, *test) for center in centers] for test in tests]
    engine = Sequential(result.model, result.federation)
    engine.memory = result.memory
    ask: Any = Asker(engine, result.federation.roster.ids, result.settings.seed, result.settings.rounds, keep=False)
    task = dataclasses.replace(result.method.predictor(result.placed), split="train")
    with one_thread():
        own = ask(task)
    best = [max(row) for row in scores]
    return {"each": scores, "best": best, "own": float(own.accuracy.mean())} | mixtures(result)


def mixtures(result: Result[Any]) -> dict[str, Any]:
    """The weights clients were found to have, and the true ones."""
    shares, truth = result.clients.shares, result.federation.mixture
    if shares is None or truth is None:
        return {}
    return {"found": shares.double().numpy().tolist(), "true": truth.tolist()}


def _models(result: Result[Any]) -> Tensor:
    ref = next(r for r in result.method.predictor(result.placed).models if isinstance(r, All | Pick | Best))
    return ref.theta[None] if isinstance(ref, All) else ref.centers


def _pooled(federation: Federation, clients: np.ndarray[Any, Any]) -> tuple[Tensor, Tensor]:
    parts = [federation.samples(int(c), "test") for c in clients]
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def clusters_on_tests(result: Result[Any], whole: bool) -> dict[str, Any]:
    """StoCFL, Tables 1 and 5: each cluster's model on the whole test set as its kind of client sees it.

    whole: on everyone's test samples, which no cluster of few classes can do well on (Table 5, Pathological).
    The mean is over found clusters, not over clients; the global model is tested on all kinds.
    """
    federation, found = result.federation, result.assignments
    truth = federation.truth if federation.truth is not None else np.zeros(len(federation), dtype=np.int64)
    kinds = range(1) if whole else range(int(truth.max()) + 1)
    tests = [_pooled(federation, np.flatnonzero(whole | (truth == kind))) for kind in kinds]
    models, scores = _models(result), {}
    for cluster in np.unique(found[found >= 0]):
        kind = 0 if whole else int(np.bincount(truth[found == cluster]).argmax())
        scores[int(cluster)] = _accuracy(result.model, models[cluster], *tests[kind])
    out: dict[str, Any] = {"clusters": float(np.mean(list(scores.values()))), "each": list(scores.values())}
    if isinstance(result.state, Stochastic):
        out["global"] = float(np.mean([_accuracy(result.model, result.state.omega, *test) for test in tests]))
    return out


def _updates(result: Result[Any], ids: Tensor) -> Tensor:
    """What each of these clients would learn in one visit from its cluster's model, in the run's last round."""
    from coterie.asking import Asker
    from coterie.engines.sequential import Sequential
    from coterie.setup import local_of
    from coterie.tasks import Fit
    from coterie.threads import one_thread

    ref = next(r for r in result.method.predictor(result.placed).models if isinstance(r, All | Pick | Best))
    engine = Sequential(result.model, result.federation)
    ask: Any = Asker(engine, ids, result.settings.seed, result.settings.rounds, keep=False)
    with one_thread():
        reply = ask(Fit(ref, local=local_of(result.method)))
    start = ref.theta[None].expand(len(ids), -1) if isinstance(ref, All) else ref.centers[reply.choice]
    return torch.as_tensor((reply.theta - start)[:, result.model.part("all")])


def likeness(result: Result[Any]) -> dict[str, Any]:
    """WeCFL, Figure 4: cosines of clients' updates, ordered by cluster, and of the clusters' models."""
    from coterie.clustering import cosines

    found = result.assignments
    order = np.lexsort((np.arange(len(found)), found))
    order = order[found[order] >= 0]
    updates = _updates(result, torch.from_numpy(np.sort(order)))
    rank = np.searchsorted(np.sort(order), order)
    matrix = cosines(updates[rank])
    labels = found[order]
    same = torch.from_numpy(labels[:, None] == labels[None, :])
    off = ~torch.eye(len(order), dtype=torch.bool)
    models = _models(result)
    return {
        "labels": labels.tolist(),
        "clients": [[round(v, 3) for v in row] for row in matrix.tolist()],
        "centers": cosines(models - models.mean(0)).tolist(),
        "within": float(matrix[same & off].mean()) if bool((same & off).any()) else None,
        "between": float(matrix[~same].mean()) if bool((~same).any()) else None,
    }


def proximity(result: Result[Any]) -> dict[str, Any]:
    """FedGroup, Figure 5: MADC against EDC for every pair of the clients that the groups were made of."""
    from coterie.clustering import edc_features, madc

    state, method = result.state, result.method
    assert isinstance(method, FedGroup)
    ids = state.clustered
    updates = _pretrained(result, method, ids)
    features = edc_features(updates, len(state.centers)).double()
    rows, columns = np.triu_indices(len(ids), 1)
    edc = torch.cdist(features, features)[rows, columns]
    apart = madc(updates)[rows, columns].double()
    kept = np.random.default_rng(0).permutation(len(rows))[:1000]
    return {
        "edc": edc[kept].tolist(),
        "madc": apart[kept].tolist(),
        "correlation": float(np.corrcoef(edc.numpy(), apart.numpy())[0, 1]),
    }


def _pretrained(result: Result[Any], method: FedGroup, ids: Tensor) -> Tensor:
    from coterie.asking import Asker
    from coterie.engines.sequential import Sequential
    from coterie.tasks import Fit
    from coterie.threads import one_thread

    engine = Sequential(result.model, result.federation)
    ask: Any = Asker(engine, ids, result.settings.seed, 0, keep=False)
    with one_thread():
        reply = ask(Fit(All(result.state.w0), local=method.pretrain or method.local))
    return torch.as_tensor((reply.theta - result.state.w0)[:, result.state.features])
