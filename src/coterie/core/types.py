"""The domains of hyper-parameters, by name; pydantic's own PositiveInt and NonNegativeFloat serve for the rest."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import ConfigDict, Field

# Of every class of settings: an unknown key is an error, and so are NaN and infinity.
STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)

Cosine: TypeAlias = Annotated[float, Field(ge=-1, le=1)]
Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]
ShareBelowOne: TypeAlias = Annotated[float, Field(ge=0, lt=1)]
ShareAboveZero: TypeAlias = Annotated[float, Field(gt=0, le=1)]

Kind: TypeAlias = Literal["classification", "regression"]  # of what labels are

# Of a partition: the share of each client's samples that is held out, or the data set's official test set, dealt out
# as its training set is. auto: official where there is one, otherwise a fifth.
TestSplit: TypeAlias = ShareBelowOne | Literal["official", "auto"]
