"""Checkpoints: state and client memory in one safetensors file, written atomically, to resume a run after a crash.

Random numbers need no saving: they are keyed by round. The file names what it belongs to, so that a
checkpoint of another run is refused, and carries a checksum, so that a damaged one is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from coterie.client.contract import Memory
from coterie.core.codec import pack, unpack
from coterie.core.decoder import DecodeError, UnknownTypeError, parse_json
from coterie.core.errors import CoterieError
from coterie.core.files import replace_durably, save_tensors
from coterie.core.model import Model
from coterie.core.tables import ByClient
from coterie.training.frozen_inside import frozen_inside, without_frozen

FORMAT = "coterie-checkpoint-1"
NAMED = re.compile(r"round-(\d+)\.safetensors")


class DamagedError(CoterieError):
    """A file that is not, or no longer, a checkpoint. The one before it may be whole."""

    code = "checkpoint-damaged"


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A run after `round` rounds."""

    round: int
    state: Any
    memory: Mapping[str, Tensor]
    also: Mapping[str, Any] = field(default_factory=dict)  # what was saved with them; files of 0.1 have nothing here
    data: str = ""  # the identity of the data that it was made with
    belongs: dict[str, str] = field(default_factory=dict)  # what it says of the run


def save(
    path: Path,
    state: object,
    memory: Memory,
    round: int,
    belongs: Mapping[str, str],
    also: Mapping[str, object] | None = None,
) -> None:
    """Write atomically: after a crash there is the old file, the new file, or both, never half of one.

    also: more of the same kind as the state (see `codec.pack`); a tensor that is in both is written once.
    """
    (outline, more), parts = pack((state, dict(also or {})))
    tensors = {f"state/{i}": t for i, t in enumerate(parts)} | {f"memory/{k}": t for k, t in memory.tensors().items()}
    tensors = _apart(tensors)
    header = {
        "format": FORMAT,
        "round": str(round),
        "belongs": json.dumps(dict(belongs), sort_keys=True),
        "state": json.dumps(outline),
        "also": json.dumps(more),
    }
    temporary = path.with_name(path.name + ".part")
    try:
        save_tensors(tensors, temporary, header | {"crc32": str(_checksum(header, tensors))})
        replace_durably(temporary, path)
    except (safetensors.SafetensorError, OSError) as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise CoterieError(
            f"{path}: cannot be written ({error}); the run can be resumed from the one before", code="disk-write"
        ) from None


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The format requires that tensors do not overlap in memory: only those that do are copied.

    Personal models of thousands of clients may be most of what fits into memory.
    """
    found, ends = {}, dict[int, int]()
    for name, t in sorted(tensors.items(), key=lambda item: item[1].data_ptr()):
        storage = t.untyped_storage().data_ptr()
        # An empty tensor is contiguous with any strides, and copying it costs nothing.
        if not t.numel() or not t.is_contiguous() or t.data_ptr() < ends.get(storage, 0):
            found[name] = t.detach().clone(memory_format=torch.contiguous_format)
        else:
            found[name] = t.detach()
            ends[storage] = t.data_ptr() + t.nbytes
    return found


Earlier: TypeAlias = Callable[[str], bool]  # whether an identity is that of the run's data at an earlier time


def load_newest(
    saves: Sequence[Path],
    template: object,
    method: object,
    belongs: Mapping[str, str],
    earlier: Earlier | None = None,
    model: Model | None = None,
    fixed: Mapping[str, str] | None = None,
) -> tuple[Checkpoint, list[Path]]:
    """The newest of these checkpoints (oldest first) that is not damaged, and the damaged ones after it."""
    damaged: list[Path] = []
    for path in reversed(saves):
        try:
            return load(path, template, method, belongs, earlier, model, fixed), damaged
        except DamagedError:
            damaged.append(path)
    names = ", ".join(path.name for path in reversed(damaged))
    raise DamagedError(f"{saves[-1].parent}: damaged: {names}; no other checkpoint is left to resume from")


def newest(
    saves: Sequence[Path],
    template: object,
    method: object,
    belongs: Mapping[str, str],
    earlier: Earlier | None = None,
    model: Model | None = None,
) -> Checkpoint:
    """The newest checkpoint that is not damaged; those that are, are named in a warning."""
    found, damaged = load_newest(saves, template, method, belongs, earlier, model)
    for file in damaged:
        warnings.warn(f"{file}: damaged; this is the run as of round {found.round}", stacklevel=2)
    return found


def load(
    path: Path,
    template: object,
    method: object,
    belongs: Mapping[str, str],
    earlier: Earlier | None = None,
    model: Model | None = None,
    fixed: Mapping[str, str] | None = None,
) -> Checkpoint:
    """Read a checkpoint of this run; that of another run is refused with the reason.

    fixed: why some settings cannot change. model: to read one of 0.1, whose vectors have frozen parameters in them;
    they are taken out.
    """
    header, tensors = _content(path)
    theirs, damaged = _said(path, header), DamagedError(f"{path}: damaged, or not a checkpoint")
    if model is not None and frozen_inside(theirs.get("model", ""), model):
        tensors = without_frozen(path, tensors, model)
        theirs |= {"model": belongs.get("model", theirs["model"])}
    for key, mine in belongs.items():
        if key == "data" and earlier is not None and earlier(theirs.get(key, "")):
            continue
        if key in theirs and not agrees(theirs[key], mine):
            raise CoterieError(f"{path}: {_mismatch(key, theirs[key], mine, fixed or {})}", code="checkpoint-mismatch")
    memory = {k.removeprefix("memory/"): t for k, t in tensors.items() if k.startswith("memory/")}
    try:
        parts = [tensors[f"state/{i}"] for i in range(sum(k.startswith("state/") for k in tensors))]
        outline = [parse_json(header["state"]), parse_json(header.get("also", '{"map": {}}'))]
        state, also = unpack(outline, parts, state_types(template, method))
        return Checkpoint(int(header["round"]), state, memory, also, theirs.get("data", ""), theirs)
    except UnknownTypeError:
        raise
    except (DecodeError, ValueError, KeyError):
        raise damaged from None


def _content(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The header and the tensors of a file, once its checksum was compared."""
    damaged = DamagedError(f"{path}: damaged, or not a checkpoint")
    if path.exists() and not path.is_file():
        raise damaged
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            header = dict(file.metadata() or {})
            # Copies: what is mapped would change, or crash the process, if another program wrote over the file.
            tensors = {k: file.get_tensor(k).clone() for k in file.keys()}  # noqa: SIM118 (not a mapping)
    except PermissionError as error:
        raise CoterieError(f"{path}: cannot be read ({error.strerror})", code="disk-read") from None
    except (safetensors.SafetensorError, OSError, ValueError, KeyError, RuntimeError) as error:
        raise damaged from error
    crc = header.pop("crc32", None)
    if crc is None or "format" not in header:
        raise DamagedError(f"{path}: not a checkpoint of this program")
    if crc != str(_checksum(header, tensors)):
        raise damaged
    check_name(path)
    if header["format"] != FORMAT:
        raise CoterieError(
            f"{path}: a checkpoint of format {header['format']}, this version reads {FORMAT}", code="run-version"
        )
    return header, tensors


def check_name(path: Path) -> None:
    """Refuse a checkpoint that has the name of another round; a damaged one is refused where it is read."""
    named = NAMED.fullmatch(path.name)
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            round = int((file.metadata() or {})["round"])
    except (safetensors.SafetensorError, OSError, ValueError, KeyError):
        return
    if named is not None and int(named[1]) != round:
        raise DamagedError(f"{path}: is a checkpoint of round {round}; give it its name again")


def _said(path: Path, header: Mapping[str, str]) -> dict[str, str]:
    try:
        return {str(key): str(value) for key, value in dict(parse_json(header["belongs"])).items()}
    except (DecodeError, ValueError, KeyError, TypeError):
        raise DamagedError(f"{path}: damaged, or not a checkpoint") from None


def belongs_of(path: Path) -> dict[str, str]:
    """What an undamaged checkpoint says of the run that it belongs to."""
    return _said(path, _content(path)[0])


def agrees(theirs: str, mine: str) -> bool:
    """Whether two descriptions are the same, apart from options that are newer than the older one."""
    left = [token for token in re.split(r"[,()]\s*", theirs) if token]
    for token in (token for token in re.split(r"[,()]\s*", mine) if token):
        if left and left[0] == token:
            left.pop(0)
        elif "=" not in token or (left and left[0].partition("=")[0] == token.partition("=")[0]):
            return False
    return not left


def _mismatch(key: str, theirs: str, mine: str, fixed: Mapping[str, str]) -> str:
    """Why a checkpoint that says `theirs` of itself is not one of this run."""
    if key == "rounds":
        return (
            f"this run has rounds={theirs}, not {mine}: {fixed[key]}, so leave the change (--more, rounds) out, "
            f"or begin another run of {mine} rounds in another directory"
        )
    its, here = _differing(theirs, mine)
    why = fixed.get(key, "a resumed run keeps its settings")
    return (
        f"belongs to another run: its {key} is {its}, this run's is {here}; {why}, so leave the change out or choose "
        "another directory"
    )


def _differing(theirs: str, mine: str) -> tuple[str, str]:
    """Of two descriptions only the parameters that differ, where they have the same ones: k=3 and k=5."""
    ones, others = (re.split(r"[,()]\s*", text) for text in (theirs, mine))
    if len(ones) != len(others):
        return _shown([theirs]), _shown([mine])
    apart = [(a, b) for a, b in zip(ones, others, strict=True) if a != b]
    return _shown([a for a, _ in apart]), _shown([b for _, b in apart])


def _shown(parts: Sequence[str]) -> str:
    """Parts of a description as a user writes them: clip=8.0, where a group of settings has {'clip': 8.0."""
    text = re.sub(r"'(\w+)': ", r"\1=", ", ".join(parts))
    return "not set" if text == "None" else text.removeprefix("{").removesuffix("}")


def state_types(template: object, method: object) -> set[type]:
    """The dataclasses a method's state may consist of: those of its fresh state and of its modules."""
    types: set[type] = {ByClient, *(type(node) for node in _dataclasses(template))}
    for base in type(method).__mro__:
        for value in vars(sys.modules.get(base.__module__, object())).values() if base is not object else ():
            if isinstance(value, type) and dataclasses.is_dataclass(value):
                types.add(value)
    return types


def _dataclasses(node: object) -> Iterator[object]:
    """Those that a state consists of."""
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        yield node
        for field in dataclasses.fields(node):
            yield from _dataclasses(getattr(node, field.name))
    elif isinstance(node, list | tuple):
        for value in node:
            yield from _dataclasses(value)


def _checksum(header: Mapping[str, str], tensors: Mapping[str, Tensor]) -> int:
    """A checksum of the file's content: its header, and the name, type, shape and bytes of every tensor."""
    crc = zlib.crc32(json.dumps(dict(header), sort_keys=True).encode())
    for name in sorted(tensors):
        t = tensors[name]
        crc = zlib.crc32(f"{name} {t.dtype} {tuple(t.shape)}".encode(), crc)
        crc = zlib.crc32(t.contiguous().reshape(-1).view(torch.uint8).numpy().data, crc)
    return crc
