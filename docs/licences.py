"""Writes docs/licences.md: the licence of every package that CI installs, as the installed package itself states it.

`python docs/licences.py` in an environment with everything of .ci/lock/distributed.txt.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK, PAGE = ROOT / ".ci" / "lock" / "distributed.txt", ROOT / "docs" / "licences.md"
# What is installed on other systems only, or says nothing in its metadata; looked up in its repository.
KNOWN = {"appnope": "BSD-2-Clause", "prv-accountant": "MIT"}
HEAD = """# Licences of dependencies

Coterie is under Apache-2.0. It contains no code of these packages; `pip` installs them. The table lists everything that
CI installs (`.ci/lock`), with the licence that each package states about itself. "Always" is what `pip install coterie`
brings, other packages belong to extras or to development. Written by `python docs/licences.py`.

| package | version | licence | needed |
|---|---|---|---|
"""


def locked(text: str) -> dict[str, str]:
    """Versions by name."""
    return dict(re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", text, re.MULTILINE))


def normal(name: str) -> str:
    """A distribution's name as a lock file has it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def licence(name: str) -> str:
    """In one line: its expression, the names of its classifiers, or the first line of its text."""
    if name in KNOWN:
        return KNOWN[name]
    about = distribution(name).metadata
    expression = about.get_all("License-Expression")
    if expression:
        return str(expression[0])
    classes = [c.rpartition(" :: ")[2] for c in about.get_all("Classifier") or () if c.startswith("License ::")]
    classes = [c for c in classes if c != "OSI Approved"]
    if classes:
        return ", ".join(classes)
    text = str((about.get_all("License") or [""])[0]).strip()
    return text.splitlines()[0][:60] if text else ""


def always() -> set[str]:
    """What an installation without extras needs, directly or not."""
    found: set[str] = set()
    open_ = ["coterie"]
    while open_:
        for line in distribution(open_.pop()).requires or ():
            name = normal(re.split(r"[^A-Za-z0-9._-]", line)[0])
            if "extra ==" in line or name in found:
                continue
            try:
                distribution(name)
            except PackageNotFoundError:
                continue  # on other systems only
            found.add(name)
            open_.append(name)
    return found


def main() -> int:
    """Write the page; 1 if a package states no licence."""
    core = always()
    packages = locked(LOCK.read_text()) | {"torch": distribution("torch").version.partition("+")[0]}
    rows, unknown = [], []
    for name, version in sorted(packages.items()):
        found = licence(name).replace("|", "/")
        if not found:
            unknown.append(name)
        rows.append(f"| {name} | {version} | {found} | {'always' if name in core else 'extras, development'} |\n")
    PAGE.write_text(HEAD + "".join(rows))
    sys.stdout.write("".join(f"no licence stated: {name}\n" for name in unknown))
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
