"""Clients' models in a run with `privacy`: only a private mean sees them; who looks at one sees a noisy sketch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.tasks import RemoteModels

if TYPE_CHECKING:
    from coterie.training.privacy.private_mean import PrivateMean


class SealedModels:
    """Models (n, P) that are kept from the method."""

    def __init__(self, models: Tensor | RemoteModels, mean: PrivateMean, seen: Callable[[Tensor], Tensor]) -> None:
        """mean: the one that may open it. seen: what stands for the models where the method looks at them."""
        self._models, self._mean, self._seen = models, mean, seen
        self._shown: Tensor | None = None
        self.dtype = models.dtype

    def __len__(self) -> int:
        return len(self._models)

    @property
    def nbytes(self) -> int:
        """Of the models."""
        return int(self._models.nbytes)

    def opened(self, by: PrivateMean) -> Tensor:
        """The models, for the private mean."""
        assert by is self._mean, "of another round"
        return self._models if isinstance(self._models, Tensor) else self._models.gathered()

    def gathered(self) -> Tensor:
        """What stands for the models, drawn once."""
        if self._shown is None:
            self._shown = self._seen(self.opened(self._mean))
        return self._shown

    def combined(self, share: Tensor) -> Tensor:
        """A mean that is not private: refused."""
        raise CoterieError("privacy: a mean was taken without its noise", code="privacy-unaccounted")

    def norms(self, choice: Tensor | None) -> Tensor:
        """The norms of single updates: refused."""
        raise CoterieError("privacy: norms of single updates are not released", code="privacy-unaccounted")


def none_of(length: int, dtype: torch.dtype) -> Tensor:
    """The models of nobody."""
    return torch.empty(0, length, dtype=dtype)
