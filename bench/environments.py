"""A virtual environment per peer: torch first, pinned, then the peer with torch held where it is."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

TORCH = "2.13.0"
HERE = Path(__file__).parent
LOCATION = HERE / ".venvs"

# Flower asks for a certifi newer than some package indexes have, so what it needs is named here without that bound.
FLOWER = (
    *("ray==2.55.1", "certifi", "grpcio<2", "grpcio-health-checking<2", "protobuf>=5.28,<7", "cryptography>=50,<51"),
    *("pycryptodome<4", "iterators<0.0.3", "typer<0.21", "tomli<3", "tomli-w<2", "pathspec<2", "prompt-toolkit<4"),
    *("rich>=14,<15", "pyyaml<7", "requests<3", "httpx<1", "click<9", "packaging>=24,<26", "sqlalchemy[asyncio]<3"),
    *("alembic<2", "uvicorn[standard]>=0.49,<0.50", "fastapi>=0.138,<0.139", "starlette>=1.3.1,<1.4"),
)


@dataclass(frozen=True)
class Peer:
    """A package to compare with."""

    package: str
    script: str
    alone: bool = False  # installed without its dependencies, which are `needs`
    needs: tuple[str, ...] = ()


PEERS = {
    "pfl": Peer("pfl==0.6.0", "pfl_research.py"),
    "flwr": Peer("flwr==1.42.0", "flower.py", alone=True, needs=FLOWER),
    "fluke": Peer("fluke-fl==0.8.1", "fluke_fl.py", needs=("torchvision==0.28.0",)),
    "fedlab": Peer("fedlab==1.3.0", "fedlab_standalone.py", needs=("torchvision==0.28.0",)),
}


def python_of(name: str, location: Path) -> Path:
    """The interpreter of a peer's environment, made if it is not there."""
    peer, place = PEERS[name], location.resolve() / name
    python, mark = place / "bin" / "python", place / "installed.txt"
    wanted = "\n".join([f"torch=={TORCH}", peer.package, *peer.needs])
    if mark.is_file() and mark.read_text() == wanted:
        return python
    print(f"installing {peer.package} in {place.name} ...", flush=True)
    location.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    pin = place / "pin.txt"
    pin.write_text(f"torch=={TORCH}\n")
    _pip(python, f"torch=={TORCH}", "numpy")
    if peer.alone:
        _pip(python, "--constraint", str(pin), *peer.needs)
        _pip(python, "--no-deps", peer.package)
    else:
        _pip(python, "--constraint", str(pin), peer.package, *peer.needs)
    mark.write_text(wanted)
    return python


def _pip(python: Path, *what: str) -> None:
    done = subprocess.run(
        [str(python), "-m", "pip", "install", "--quiet", *what], capture_output=True, text=True, check=False
    )
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "ERROR" in line] or ["pip failed"]
        raise RuntimeError(f"pip install {' '.join(what)}: {errors[-1]}")
