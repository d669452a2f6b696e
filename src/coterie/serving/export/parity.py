"""Whether a written file says what this library says, tried on random samples."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from coterie.core.compute import one_thread
from coterie.core.errors import CoterieError
from coterie.data.columns import TableScale
from coterie.serving.export.formats import Reader
from coterie.serving.export.selection import Selected

BATCHES = (1, 7)  # one graph takes both
TOLERANCE = 1e-5  # of the largest output of a batch, where that is above 1


def check(read: Reader, chosen: Selected, where: str) -> float:
    """The largest difference over samples and outputs; an error where it is above the tolerance."""
    rng, worst = torch.Generator().manual_seed(0), 0.0
    for size in BATCHES:
        inputs = random_inputs(chosen, size, rng)
        with one_thread():
            wanted = reference(chosen, inputs)
        worst = max(worst, difference(read(inputs), wanted))
    if not worst <= TOLERANCE:
        raise CoterieError(
            f"export: {where} differs by {worst:.2g} from what this library predicts (at most {TOLERANCE:g} is "
            "accepted), so it was not kept; please report it with the network's class",
            code="export-parity",
        )
    return worst


@torch.inference_mode()
def reference(chosen: Selected, inputs: Tensor) -> tuple[Tensor, ...]:
    """What the library itself makes of stored samples, by `Scale` and `TargetScale` and not by the exported graph."""
    said = chosen.network(inputs if chosen.scale is None else chosen.scale(inputs.clone()))
    if chosen.loss == "cross_entropy":
        return said, torch.softmax(said.double(), 1), said.argmax(1)
    return (said if chosen.target is None else chosen.target.undo(said).to(said.dtype),)


def difference(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """The largest difference of an output; labels count where the two best classes are further apart than rounding."""
    worst = 0.0
    for mine, other in zip(found, wanted, strict=True):
        if mine.shape != other.shape:
            return torch.inf
        if other.is_floating_point():
            apart = (mine.double() - other.double()).abs() / max(1.0, float(other.abs().max()))
            worst = max(worst, float(torch.where(apart.isnan(), torch.inf, apart).max()))
        elif wanted[0].shape[1] > 1:
            best = wanted[0].double().topk(2, 1).values
            clear = best[:, 0] - best[:, 1] > TOLERANCE * max(1.0, float(best.abs().max()))
            worst = torch.inf if bool((mine != other)[clear].any()) else worst
    return worst


def random_inputs(chosen: Selected, size: int, rng: torch.Generator) -> Tensor:
    """Samples (size, ...) as they are stored: like the training data in scale, with what may be missing in it."""
    if chosen.dtype == torch.int64:
        words = [m.num_embeddings for m in chosen.network.modules() if isinstance(m, nn.Embedding)]
        return torch.randint(0, min(words, default=2), (size, *chosen.shape), generator=rng)
    if isinstance(chosen.scale, TableScale):
        return _random_rows(chosen.scale, size, rng).to(chosen.dtype)
    drawn = torch.randn(size, *chosen.shape, generator=rng)
    if chosen.scale is not None:
        drawn = (drawn * chosen.scale.std + chosen.scale.mean) * chosen.scale.divisor
    return drawn.to(chosen.dtype)


def _random_rows(scale: TableScale, size: int, rng: torch.Generator) -> Tensor:
    """Numbers as in training, codes of all categories and of none, and holes where holes are accepted."""
    mean, std = (torch.as_tensor(part).double() for part in (scale.mean, scale.std))
    columns, place = [], 0
    for column in scale.columns:
        if column.values is None:
            drawn = torch.randn(size, generator=rng).double() * std[place] + mean[place]
        else:
            drawn = torch.randint(-1, len(column.values), (size,), generator=rng).double()
        if column.fills:
            drawn[torch.rand(size, generator=rng) < 0.2] = torch.nan
        columns.append(drawn)
        place += len(column.inputs)
    return torch.stack(columns, 1)
