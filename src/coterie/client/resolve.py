"""From references to vectors at one client, with what models predict for its training samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from coterie.client.data import ClientData
from coterie.core.errors import CoterieError, not_finite
from coterie.core.model import Replica
from coterie.core.objective import sample_losses
from coterie.core.references import All, Best, Estimated, Mix, OneRow, Own, Personal, Pick, Posterior, Ref, Row, walk
from coterie.core.tables import ByClient

Outputs: TypeAlias = Callable[[Sequence[Tensor], Tensor], Tensor]


class Resolver:
    """Resolves references for one client. Predictions are cached: the tasks of a visit often use the same models."""

    def __init__(
        self, replica: Replica, client: int, data: ClientData, keeps: dict[str, Tensor], outputs: Outputs
    ) -> None:
        """replica: the network for predictions; outputs: those (G, n, outputs) of models for samples."""
        self.replica, self.client, self.data, self.keeps, self.outputs = replica, client, data, keeps, outputs
        self.written: dict[str, Tensor] = {}  # what the client keeps of this visit
        # (K, n, outputs) of the training samples, by the ids of the centers and of what is personal of them.
        self.center_outputs: dict[tuple[int, int | None], Tensor] = {}
        self.model_outputs: dict[Ref, Tensor] = {}  # (n, outputs) of one model

    def resolve(self, ref: Ref) -> tuple[Tensor, int | None]:
        """The vector a reference means for this client, and the row it is, if it is one."""
        match ref:
            case All() | Pick() | Row() | Best():
                shared, row = self.picked(ref)
                return self.joined(shared, ref.personal), row
            case Mix(centers, weights):
                mixture = self.value(weights) if isinstance(weights, ByClient) else self.resolve(weights)[0]
                return mixture.to(centers) @ centers, None
            case Estimated():
                return self._estimate(ref), None
            case Own(slot, default):
                kept = self.kept(slot)
                if kept is None:
                    return self.resolve(default)
                # The kept value is used in place of a row that the server or the client chose; that row is reported.
                return kept, self.resolve(default)[1] if isinstance(default, OneRow) else None

    def begun(self, ref: Ref) -> tuple[Tensor, int | None]:
        """The same for a training, which begins with the client's own values as they are: it fits them itself."""
        if not isinstance(ref, All | OneRow) or ref.personal is None:
            return self.resolve(ref)
        shared, row = self.picked(ref)
        return self.put_together(shared, self.resolve(ref.personal.own)[0], ref.personal), row

    def picked(self, ref: All | OneRow) -> tuple[Tensor, int | None]:
        """The server's vector that is meant for this client, and the row it is, if it is one."""
        match ref:
            case All(theta):
                return theta, None
            case Row(theta, number):
                return theta, number
            case Best(centers):
                row = self._best(ref)
                return centers[row], row
            case Pick(centers, labels):
                picked = ref.row_of(self.client)
                if picked is None:
                    raise CoterieError(
                        f"the server picked row {int(self.value(labels))} of {len(centers)}", code="task-invalid"
                    )
                return centers[picked], picked

    def joined(self, shared: Tensor, personal: Personal | None) -> Tensor:
        """A model of the server's with the client's own values where they belong."""
        if personal is None:
            return shared
        if personal.tune is not None and personal.own.slot not in self.keeps:
            return self.tuned(shared, personal)
        return self.put_together(shared, self.resolve(personal.own)[0], personal)

    def put_together(self, shared: Tensor, own: Tensor, personal: Personal) -> Tensor:
        """A whole model out of its two parts."""
        mine = self.replica.section(personal.section)
        many = int(mine.sum())
        if (len(own), len(shared)) != (many, len(mine) - many):
            raise CoterieError(
                f"a personal section of {len(own)} numbers and {len(shared)} shared ones do not fit this network of "
                f"{len(mine)}, of which {many} are personal",
                code="model-size",
            )
        whole = shared.new_empty(len(mine))
        whole[mine], whole[~mine] = own, shared
        return whole

    def tuned(self, shared: Tensor, personal: Personal) -> Tensor:
        """A model whose personal section is trained here and now, with the rest frozen: see `visit`."""
        raise NotImplementedError

    def compared(self, center: Tensor, personal: Personal | None) -> Tensor:
        """A center as it is compared with others."""
        tune = personal is not None and personal.tune is not None
        return self.tuned(center, personal) if tune and personal is not None else self.joined(center, personal)

    def value(self, table: ByClient) -> Tensor:
        """This client's value."""
        value = table.get(self.client)
        if value is None:
            raise CoterieError(
                "the server has no value for this client (no cluster, no weights), and no default",
                code="client-no-value",
            )
        return value

    def kept(self, slot: str) -> Tensor | None:
        """What the client keeps under this name, where it is computed; None if nothing."""
        value = self.keeps.get(slot)
        if value is None or value.device == self.replica.device:
            return value
        self.keeps[slot] = there = value.to(self.replica.device)
        return there

    def keep(self, slot: str, value: Tensor) -> None:
        """Keep a value at the client, and forget what was computed from the one before."""
        self.keeps[slot] = self.written[slot] = value
        self.model_outputs = {ref: outputs for ref, outputs in self.model_outputs.items() if not _reads(ref, slot)}
        self.center_outputs = {key: outputs for key, outputs in self.center_outputs.items() if key[1] is None}

    def center_logits(self, centers: Tensor, given: Ref | None, personal: Personal | None = None) -> Tensor:
        """The logits of every center for the training samples (K, n, outputs), plus those of the model `given`."""
        key = id(centers), None if personal is None else id(personal)
        if key not in self.center_outputs:
            x, _ = self.data.train
            self.center_outputs[key] = self.outputs([self.compared(center, personal) for center in centers], x)
        logits = self.center_outputs[key]
        return logits if given is None else logits + self.logits(given)

    def _best(self, ref: Best) -> int:
        if ref.by == "loss":
            return int(self.losses(ref.centers, ref.given, ref.personal).mean(1).argmin())
        if self.replica.loss != "cross_entropy":
            raise CoterieError("a model is chosen by accuracy only where labels are classes", code="task-invalid")
        logits = self.center_logits(ref.centers, ref.given, ref.personal)
        wrong = (logits.argmax(2) != self.data.train[1]) | ~logits.isfinite().all(2)
        return int(wrong.sum(1).argmin())

    def _estimate(self, ref: Estimated) -> Tensor:
        losses = self.losses(ref.centers, None)
        if ref.rule == "votes":
            return votes(losses)
        losses = losses + self.class_logs(ref.class_shares, losses)
        weights = losses.new_full((len(ref.centers),), 1 / len(ref.centers))
        for _ in range(ref.steps):
            weights = torch.softmax(weights.log() - losses.T, dim=1).mean(0)
        return weights

    def losses(self, centers: Tensor, given: Ref | None, personal: Personal | None = None) -> Tensor:
        """The loss of every center on every training sample (K, n); a loss that is not finite is infinite."""
        y = self.data.train[1]
        rows = [sample_losses(logits, y, self.replica.loss) for logits in self.center_logits(centers, given, personal)]
        losses = torch.stack(rows).nan_to_num(nan=torch.inf, posinf=torch.inf)
        if not bool(losses.isfinite().all(1).any()):
            raise not_finite("every center has a loss on this client's data")
        return losses

    def logits(self, ref: Ref) -> Tensor:
        """The logits of a model for the training samples (n, outputs)."""
        if isinstance(ref, Own) and ref.slot not in self.keeps:
            return self.logits(ref.default)
        if ref not in self.model_outputs:
            theta, row = self.resolve(ref)
            if isinstance(ref, Best):  # to choose it, the logits of all were computed
                self.model_outputs[ref] = self.center_logits(ref.centers, None, ref.personal)[row].clone()
            else:
                self.model_outputs[ref] = self.outputs([theta], self.data.train[0])[0]
        return self.model_outputs[ref]

    def class_logs(self, shares: Tensor | None, losses: Tensor) -> Tensor:
        """log p_k(y) of every training sample (K, n), of the type of the losses; 0 without class shares."""
        if shares is None:
            return losses.new_zeros(())
        y = self.data.train[1]
        if self.replica.loss != "cross_entropy":
            raise CoterieError("class_shares: only where labels are classes", code="task-invalid")
        if int(y.max()) >= shares.shape[1]:
            raise CoterieError(
                f"class_shares: {shares.shape[1]} classes, this client has one of number {int(y.max())}",
                code="task-invalid",
            )
        return shares.to(losses).log()[:, y]

    def posterior(
        self,
        centers: Tensor,
        prior: Ref | None,
        given: Ref | None = None,
        shares: Tensor | None = None,
        personal: Personal | None = None,
    ) -> Tensor:
        """p(center | sample) for every sample (n, K)."""
        losses = self.losses(centers, given, personal)
        losses = (losses + self.class_logs(shares, losses)).T
        pi = losses.new_full((len(centers),), 1 / len(centers)) if prior is None else self.resolve(prior)[0]
        found = torch.softmax(pi.log() - losses, dim=1)
        if not bool(found.isfinite().all()):
            raise CoterieError(
                "no center with a finite loss has a prior above zero on this client's data", code="client-no-value"
            )
        return found

    def sample_weights(self, weights: Posterior) -> Tensor:
        """The weight of every training sample (n,)."""
        found = self.posterior(weights.centers, weights.prior, shares=weights.class_shares)
        return found[:, weights.component]


def _reads(ref: Ref, slot: str) -> bool:
    """Whether what a reference means depends on what the client keeps under this name."""
    return any(isinstance(node, Own) and node.slot == slot for node in walk(ref))


def votes(losses: Tensor) -> Tensor:
    """The share of samples on which each center has the least loss; the lowest index wins a tie."""
    return torch.bincount(losses.argmin(0), minlength=len(losses)) / losses.shape[1]
