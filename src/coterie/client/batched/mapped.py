"""Training of many clients as one computation, for any network that `torch.func.vmap` can map over its parameters.

For accelerators, which one small convolution leaves idle: a convolution with G sets of filters becomes one in G groups.
On a CPU that is slower than one client after another. The gradient is autograd's; plan, updates and order of clients
are those of `mlp`. Which networks it is for is found by trial: no random layers, no statistics, and no layer that looks
at the other samples of a batch, for a short batch is filled up with samples of weight zero.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from coterie.client.training import LocalTraining, Proximal, TrainingResult, initial_state, make_plan, steps_of
from coterie.core.allocation import BufferPool
from coterie.core.model import Replica
from coterie.core.objective import sample_losses
from coterie.core.parts import views
from coterie.core.seeds import own_random_numbers

COPIES = 4  # of a model: itself, its gradient, the optimizer's state, the anchor of a proximal term
SAME = 1e-4  # how close outputs must be that are the same but for rounding


class MappedTraining:
    """Trains copies of one network side by side."""

    def __init__(self, replica: Replica, blocks: BufferPool) -> None:
        self.replica, self.blocks = replica, blocks
        self.names = [name for name, p in replica.network.named_parameters() if p.requires_grad]
        self._fits: dict[tuple[int, ...], bool] = {}  # by the shape of a sample
        self._activations: dict[tuple[int, ...], int] = {}  # numbers that a sample is turned into on its way

    def outputs(self, thetas: Tensor, x: Tensor) -> Tensor:
        """Of models (G, P) for samples of their own (G, b, ...), in the mode that the network is in."""
        found: Tensor = vmap(self._one)(thetas, x)
        return found

    def _one(self, theta: Tensor, x: Tensor) -> Tensor:
        # Contiguous: some layers cannot be mapped over what lies with its channels last, as filters do in the vector.
        values = [part.contiguous() for part in views(theta, self.replica.trained)]
        parameters = dict(zip(self.names, values, strict=True))
        found: Tensor = functional_call(self.replica.network, parameters, (x,))
        return found

    # ------------------------------------------------------------------------------------------------ which networks

    def fits(self, x: Tensor) -> bool:
        """Whether clients with such samples can train together and get what each would get alone."""
        shape = tuple(x.shape[1:])
        if shape not in self._fits:
            # What a layer may raise is not known; whatever it is, clients train one by one and report it themselves.
            try:
                self._fits[shape] = self._tried(x)
            except Exception:
                self._fits[shape] = False
        return self._fits[shape]

    def _tried(self, x: Tensor) -> bool:
        replica = self.replica
        if len(replica.theta) > len(replica.weights) or replica.mixes or replica.least_batch(x) > 1 or not len(x):
            return False
        normal = torch.Generator().manual_seed(0)
        samples = torch.randn((2, 2, *x.shape[1:]), generator=normal).to(x) if x.is_floating_point() else _alike(x)
        replica.training()
        with own_random_numbers(replica.device), torch.inference_mode(mode=False), torch.enable_grad():
            thetas = torch.randn((2, len(replica.theta)), generator=normal).mul_(0.1).to(replica.theta)
            thetas.requires_grad_()
            together = self.outputs(thetas, samples)
            torch.autograd.grad(together.sum(), thetas)
            self._activations[tuple(x.shape[1:])] = self._numbers(thetas[0].detach(), samples[0])
        with torch.no_grad():
            other = samples.clone()
            other[:, 1] = 1 - other[:, 1] if x.is_floating_point() else other[:, 0]
            mixed = self.outputs(thetas, other)[:, 0]
        close = torch.allclose(mixed.cpu(), together[:, 0].detach().cpu(), rtol=SAME, atol=SAME)
        return close and together.shape[:2] == (2, 2)

    def _numbers(self, theta: Tensor, x: Tensor) -> int:
        """How many numbers the layers put out for one sample."""
        seen: list[int] = []

        def look(_module: nn.Module, _inputs: object, output: object) -> None:
            seen.append(output.numel() if isinstance(output, Tensor) else 0)

        leaves = [m for m in self.replica.network.modules() if not any(m.children())]
        hooks = [m.register_forward_hook(look) for m in leaves]
        try:
            with torch.no_grad():
                self._one(theta, x)
        finally:
            for hook in hooks:
                hook.remove()
        return sum(seen) // len(x)

    def bytes_of(self, training: LocalTraining) -> int:
        """The approximate memory that a client needs in a step."""
        n, x = len(training.y), training.x
        batch = n if training.local.batch == "full" else min(training.local.batch, n)
        per_sample = 2 * self._activations.get(tuple(x.shape[1:]), 0) + x[:1].numel()
        return training.start.element_size() * (COPIES * len(training.start) + batch * per_sample)

    # ------------------------------------------------------------------------------------------------------ training

    def train(self, trainings: Sequence[LocalTraining]) -> list[TrainingResult]:
        """Train clients that share their settings (but not their data, starts, anchors, ...), in the order given."""
        order = sorted(range(len(trainings)), key=lambda g: -steps_of(len(trainings[g].y), trainings[g].local))
        with torch.inference_mode(mode=False), torch.enable_grad():
            found = self._trained([trainings[g] for g in order])
        return [found[place] for place in np.argsort(order).tolist()]

    def _trained(self, trainings: Sequence[LocalTraining]) -> list[TrainingResult]:
        first, span = trainings[0], trainings[0].span or slice(0, 0)
        starts = np.cumsum([0, *(len(one.y) for one in trainings[:-1])]).tolist()
        plan = make_plan(trainings, starts).to(first.start.device)
        x, y = torch.cat([one.x for one in trainings]), torch.cat([one.y for one in trainings])
        offset, weights = _joined([t.offset for t in trainings]), _joined([t.weights for t in trainings])
        thetas = self._stacked([one.start for one in trainings])
        state = self._stacked([initial_state(one.local, one.start[span], one.state) for one in trainings])
        proximal = _proximal([one.proximal for one in trainings], span)
        inside = torch.arange(plan.rows.shape[2], device=plan.sizes.device) < plan.sizes[..., None]  # (T, G, b)
        share = inside.to(thetas.dtype) / plan.sizes.clamp(min=1)[..., None]
        share = share if weights is None else share * weights[plan.rows]
        losses = thetas.new_zeros(plan.sizes.shape)
        self.replica.training()
        for begin, end, k in plan.segments:
            now = proximal
            if now is not None and isinstance(now.mu, Tensor):
                now = Proximal(now.anchor[:k], now.mu[:k])
            for t in range(begin, end):
                rows = plan.rows[t, :k]
                leaf = thetas[:k].detach().requires_grad_()
                outputs = self.outputs(leaf, x[rows]).flatten(0, 1)
                outputs = outputs if offset is None else outputs + offset[rows].flatten(0, 1)
                own = sample_losses(outputs, y[rows].flatten(0, 1), self.replica.loss).view(k, -1) * share[t, :k]
                (grad,) = torch.autograd.grad(own.sum(), leaf)
                with torch.no_grad():
                    losses[t, :k] = own.sum(1)
                    first.rule.step(thetas[:k, span], grad[:, span], state[:k], now)
        means = (losses.sum(0) / (plan.sizes > 0).sum(0)).tolist()
        return [TrainingResult(thetas[g], means[g], state[g]) for g in range(len(trainings))]

    def _stacked(self, vectors: Sequence[Tensor]) -> Tensor:
        """(G, length): a copy, even of a single vector."""
        with torch.no_grad():
            room = self.blocks.empty((len(vectors), len(vectors[0])), vectors[0].dtype)
            return torch.stack(list(vectors), out=room)


def _alike(x: Tensor) -> Tensor:
    """Two times two samples of whole numbers, such as tokens, which cannot be made up."""
    return torch.stack([x[[0, len(x) - 1]], x[[len(x) - 1, 0]]])


def _joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    given = [part for part in parts if part is not None]
    return torch.cat(given) if given else None


def _proximal(terms: Sequence[Proximal | None], span: slice) -> Proximal | None:
    given = [term for term in terms if term is not None]
    if not given:
        return None
    anchor = torch.stack([term.anchor for term in given])[:, span]
    return Proximal(anchor, anchor.new_tensor([float(term.mu) for term in given])[:, None])
