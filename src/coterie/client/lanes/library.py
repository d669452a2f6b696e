"""The compiled part of `lanes`: built by the machine's own C++ compiler when it is first needed, then kept.

The wheel stays pure Python and fits every platform; what is built fits the processor it runs on (AVX-512, AVX2, NEON),
which a wheel for many could not. Without a compiler there is no library, and networks are computed by torch.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

import platformdirs

NATIVE = Path(__file__).parent / "native"
FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-fno-strict-aliasing", "-shared", "-fPIC")
SWITCH = "COTERIE_LANES"  # "off": always torch
PATIENCE = 120  # seconds that the compiler may take

Pointer, Int = ctypes.c_void_p, ctypes.c_int64


@functools.cache
def library(name: str = "lanes") -> ctypes.CDLL | None:
    """The compiled functions of native/name.cpp; None where they are switched off or cannot be built."""
    compiler = shutil.which(os.environ.get("CXX", "c++")) if os.environ.get(SWITCH) != "off" else None
    if compiler is None or os.name != "posix":
        return None
    try:
        found = ctypes.CDLL(str(_built(compiler, name)))
    except (OSError, subprocess.SubprocessError):  # no place to write to, or a compiler that does not know the language
        return None
    found.lanes.restype, found.lanes.argtypes = Int, []
    (_declare_lanes if name == "lanes" else _declare_regression)(found)
    return found


def _declare_lanes(found: ctypes.CDLL) -> None:
    found.gradient.restype = ctypes.c_double
    found.gradient.argtypes = [
        *(Pointer, Int, Pointer, Pointer, Int, Pointer, Int, Pointer),
        *(Pointer, Pointer, Int, Int, Pointer, Pointer, Pointer, Pointer),
    ]
    found.outputs.restype = None
    found.outputs.argtypes = [
        *(Pointer, Int, Pointer, Int, Int, Pointer, Int, Pointer),
        *(Int, Pointer, Int, Int, Pointer),
    ]


def _declare_regression(found: ctypes.CDLL) -> None:
    found.regression.restype, found.regression.argtypes = ctypes.c_double, [Pointer]


def _built(compiler: str, name: str = "lanes") -> Path:
    """The library of this source, for this compiler and processor."""
    machine = platform.machine()
    native = "-mcpu=native" if machine in ("arm64", "aarch64") else "-march=native"
    command = [compiler, *FLAGS, native]
    found = hashlib.sha256("\n".join([*command, name, machine, _processor(), _version(compiler)]).encode())
    for file in sorted(NATIVE.iterdir()):
        found.update(file.read_bytes())
    place = Path(platformdirs.user_cache_dir("coterie")).absolute() / "lanes" / f"{found.hexdigest()[:24]}.so"
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _check_private(place.parent)
    if not place.exists():
        with tempfile.TemporaryDirectory(dir=place.parent) as folder:
            made = Path(folder) / "lanes.so"
            words = [*command, "-o", str(made), str(NATIVE / f"{name}.cpp")]
            subprocess.run(words, check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE)
            made.chmod(0o700)
            made.replace(place)  # at once, whatever other processes do at the same time
    _check_private(place)
    return place


def _check_private(place: Path) -> None:
    """Code is loaded from nowhere that anyone else could write to."""
    found = place.lstat()
    writable = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if stat.S_ISLNK(found.st_mode) or found.st_uid != os.geteuid() or writable:
        raise PermissionError(f"{place}: others may write to it")


def _version(compiler: str) -> str:
    """A compiler's file, as it is now."""
    file = Path(compiler).resolve()
    return f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}"


def _processor() -> str:
    """What the processor can do: a home directory may be shared by different machines."""
    own = f"{platform.processor()} {platform.node()}"  # where this is not known, the machine itself
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return own
    return next((line for line in lines if line.startswith(("flags", "Features"))), own)
