"""Parcels as Flower's records and back: raw buffers, which Flower cuts into chunks and sends once if they are equal."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from coterie.network.protocol.wire import EncodedTensor, Payload, WireError

OUTLINE, ARRAYS = "outline", "arrays"
KIND = "coterie"  # how the bytes of an array are to be read: as they are
TYPE = "query.coterie"  # of every message


def to_records(payload: Payload) -> RecordDict:
    """A payload as the content of a message."""
    arrays = {str(i): Array(a.dtype, a.shape, KIND, a.data) for i, a in enumerate(payload.arrays)}
    return RecordDict({OUTLINE: ConfigRecord({"json": payload.outline}), ARRAYS: ArrayRecord(arrays)})


def from_records(content: RecordDict) -> Payload:
    """The payload in a message, if there is one; what it says is not looked at."""
    outline, arrays = content.get(OUTLINE), content.get(ARRAYS)
    if (
        set(content) != {OUTLINE, ARRAYS}
        or not isinstance(outline, ConfigRecord)
        or not isinstance(arrays, ArrayRecord)
    ):
        raise WireError("a message without a payload")
    text = outline.get("json")
    if set(outline) != {"json"} or not isinstance(text, str):
        raise WireError("a payload without an outline")
    if list(arrays) != [str(i) for i in range(len(arrays))] or any(a.stype != KIND for a in arrays.values()):
        raise WireError("a payload whose arrays are not as they should be")
    return Payload(text, tuple(EncodedTensor(a.dtype, tuple(a.shape), a.data) for a in arrays.values()))
