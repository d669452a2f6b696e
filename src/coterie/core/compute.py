"""Where clients are computed, how precisely, and with how many cores and threads."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeAlias

import torch
from pydantic import AfterValidator

from coterie.core.errors import CoterieError
from coterie.core.settings import STRICT
from coterie.core.settings import dataclass as validated

Precision: TypeAlias = Literal["float32", "bf16", "fp16"]
AUTO = "auto"
CPU = torch.device("cpu")
ACCELERATORS = ("cuda", "xpu", "mps")  # which `auto` looks for, in this order
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"  # in the environment: cuBLAS is deterministic only with a fixed workspace


def _is_device(value: str) -> str:
    if not re.fullmatch(r"[a-z]+(:\d+)?", value):
        raise ValueError("expected a device: auto, cpu, cuda, cuda:1, mps or xpu")
    return value


DeviceName: TypeAlias = Annotated[str, AfterValidator(_is_device)]


@validated(frozen=True, config=STRICT)
class Compute:
    """Where and how clients are computed.

    device: "auto" (an accelerator if there is one, else the CPU), "cpu", "cuda", "cuda:1", "mps" or "xpu".
    precision: "float32"; or "bf16", "fp16": networks compute in it by autocast, parameters stay as they are.
    compile: whether networks are compiled (torch.compile). deterministic: only algorithms that give the same bits
    again.
    """

    device: DeviceName = AUTO
    precision: Precision = "float32"
    compile: bool = False
    deterministic: bool = False

    @property
    def accelerated(self) -> bool:
        """Whether it asks for a device that is not the CPU; `auto` does not say."""
        return self.device not in (AUTO, "cpu")

    @property
    def low_precision(self) -> torch.dtype | None:
        """What networks compute in, if that is not what their parameters are."""
        return DTYPES.get(self.precision)

    def resolved(self) -> Compute:
        """The same with the device that it comes to on this machine; an error if there is none such."""
        return replace(self, device=str(find_device(self.device)))


AUTOMATIC, HOST = Compute(), Compute(device="cpu")


def find_device(name: str) -> torch.device:
    """The device of this name, with its number."""
    if name == AUTO:
        name = next((kind for kind in ACCELERATORS if _count(kind)), "cpu")
    kind, _, number = name.partition(":")
    if kind == "cpu":
        return CPU
    many = _count(kind)
    if many and int(number or 0) < many:
        return torch.device(kind) if kind == "mps" else torch.device(kind, int(number) if number else _current(kind))
    here = [f"{k}:{i}" if _count(k) > 1 else k for k in ACCELERATORS for i in range(_count(k))]
    raise CoterieError(
        f"device: this machine has no '{name}' that PyTorch {torch.__version__} can use; it has "
        f"{', '.join(['cpu', *here])}. Write one of these, or auto",
        code="device-unavailable",
    )


def _count(kind: str) -> int:
    """How many devices of a kind there are."""
    try:
        module: Any = torch.get_device_module(kind)
    except (RuntimeError, AttributeError):  # a kind that PyTorch does not know
        return 0
    available = getattr(module, "is_available", None)
    return int(module.device_count()) if available is not None and available() else 0


def _current(kind: str) -> int:
    module: Any = torch.get_device_module(kind)
    return int(module.current_device())


# ------------------------------------------------------------------------------------------------------ random numbers


# --------------------------------------------------------------------------------------------------------- determinism


@contextmanager
def determinism(wanted: bool) -> Iterator[None]:
    """Meanwhile operations without a deterministic implementation raise an error, if that is wanted."""
    if not wanted:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled()
    be_deterministic()
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def be_deterministic() -> None:
    """From now on, in this process."""
    os.environ.setdefault(WORKSPACE, ":4096:8")  # read when cuBLAS is first used
    torch.use_deterministic_algorithms(True)


CORES = "COTERIE_CORES"  # in the environment: the most cores that a run may use


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread for the time being: many small clients do not profit from more, and bits stay the same."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def cores() -> int:
    """The processor cores this process may use; fewer where the environment says so (COTERIE_CORES)."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    said = os.environ.get(CORES, "")
    return min(found, int(said)) if said.isdecimal() and int(said) else found
