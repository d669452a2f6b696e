"""Build the wheel, install it into an environment of its own and use it: `python .ci/wheel_check.py`.

The new environment sees the wheel and the packages that `pip install coterie` would bring, without any extra. These are
linked from the environment that runs this script, so that nothing large is downloaded.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email.parser import Parser
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HERE = ROOT / "build" / "wheel"
NEEDED = (
    "coterie/py.typed",
    "coterie/tools/report/templates/page.html",
    "coterie/network/flower/app_template/pyproject.toml",
    "coterie/client/lanes/native/lanes.cpp",
    "coterie/client/lanes/native/regression.cpp",
    "coterie/client/lanes/native/take.h",
    "coterie/client/lanes/native/vectors.h",
)


def call(*words: str | Path, code: int = 0, cwd: Path | None = None) -> str:
    """Run a command; its output, or an end with what it said."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, cwd=cwd)
    if done.returncode != code:
        shown = " ".join(str(word) for word in words)
        sys.exit(f"{shown}\nended with {done.returncode} instead of {code}:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def build() -> Path:
    """The wheel of this checkout."""
    shutil.rmtree(HERE, ignore_errors=True)
    call(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", HERE, ROOT)
    (wheel,) = HERE.glob("*.whl")
    return wheel


def required(requirements: list[str]) -> set[str]:
    """Names of the distributions that requirements without an extra lead to, installed here."""
    found: set[str] = set()
    waiting = [line for line in requirements if "extra ==" not in line]
    while waiting:
        name = re.split(r"[^A-Za-z0-9._-]", waiting.pop())[0].lower().replace("_", "-")
        if name in found:
            continue
        try:
            further = distribution(name).requires or []
        except PackageNotFoundError:  # for another platform or Python
            continue
        found.add(name)
        waiting += [line for line in further if "extra ==" not in line]
    return found


def link(names: set[str], folder: Path) -> None:
    """Everything these distributions installed, as links in a folder."""
    folder.mkdir()
    installed = {Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")}
    for name in sorted(names):
        for file in distribution(name).files or ():
            top = file.parts[0]
            target = folder / top
            source = next((place / top for place in installed if (place / top).exists()), None)
            if top not in ("..", "__pycache__") and source is not None and not target.exists():
                target.symlink_to(source)


def main() -> None:
    """Every step; the first that fails ends it."""
    wheel = build()
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        meta = Parser().parsestr(archive.read(next(n for n in names if n.endswith("/METADATA"))).decode())
    if missing := [name for name in NEEDED if name not in names]:
        sys.exit(f"not in the wheel: {', '.join(missing)}")
    home = HERE / "venv"
    venv.create(home, symlinks=True, with_pip=False)
    python, command = home / "bin" / "python", home / "bin" / "coterie"
    call(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel)
    link(required(meta.get_all("Requires-Dist", [])), HERE / "dependencies")
    packages = Path(call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (packages / "dependencies.pth").write_text(f"{HERE / 'dependencies'}\n")

    work = HERE / "work"
    work.mkdir()
    place = Path(call(python, "-c", "import coterie; print(coterie.__file__)", cwd=work).strip())
    if not place.is_relative_to(packages):
        sys.exit(f"imported from {place}, not from the wheel")
    if meta["Version"] not in call(command, "--version", cwd=work):
        sys.exit("the version of the command is not that of the wheel")
    call(command, "list", "methods", cwd=work)
    demo = call(command, "demo", "--out", "demo", cwd=work)
    for said in ("found 4 clusters, exactly the hidden ones", "coterie report demo/fedavg", "coterie[report]"):
        if said not in demo:
            sys.exit(f"`coterie demo` does not say: {said}\n{demo}")
    small = ("method.name=wecfl", "method.k=2", "rounds=2", "data.partition.clients=8")
    call(command, "run", *small, "--out", "run", cwd=work)
    rounds = [json.loads(line) for line in (work / "run" / "rounds.jsonl").read_text().splitlines()]
    script = "import coterie, torch; result = coterie.load('run'); print(result.predict(0, torch.zeros(2, 1, 8, 8)))"
    call(python, "-c", script, cwd=work)
    if "coterie[report]" not in call(command, "report", "run", code=2, cwd=work):
        sys.exit("`coterie report` without its extra does not say what to install")
    print(f"{wheel.name}: installed without extras, {len(rounds)} lines of rounds, loaded and used")


if __name__ == "__main__":
    main()
