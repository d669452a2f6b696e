"""What CI installs: everything that pyproject.toml asks for is locked with hashes, and its licence is listed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
UNHASHED = {"torch"}  # which build there is depends on the machine: see .ci/lock/update
# Licences that ask something of whoever uses a library unchanged, beyond naming it.
STRONG = r"(?<!L)GPL|AGPL|SSPL|non-?commercial|Commons Clause"


def requirements(lines: list[str]) -> list[Requirement]:
    """Of an extra, those of the extras it names included."""
    found: list[Requirement] = []
    for one in map(Requirement, lines):
        if one.name == "coterie":
            for extra in one.extras:
                found += requirements(PROJECT["optional-dependencies"][extra])
        else:
            found.append(one)
    return found


def locked(name: str) -> dict[str, tuple[str, int]]:
    """The version and the number of hashes of each package."""
    found = {}
    for block in re.split(r"\n(?=\S)", (ROOT / ".ci" / "lock" / f"{name}.txt").read_text()):
        match = re.match(r"([A-Za-z0-9._-]+)==([^\s;\\]+)", block)
        if match:
            found[str(canonicalize_name(match[1]))] = (match[2], len(re.findall(r"--hash=sha256:[0-9a-f]{64}", block)))
    return found


@pytest.mark.parametrize(("lock", "extras"), [("dev", "dev"), ("distributed", "dev,ray,flower")])
def test_everything_that_is_asked_for_is_locked(lock: str, extras: str) -> None:
    """`.ci/lock/update` writes the files anew after a change of pyproject.toml."""
    there = locked(lock)
    torch = Requirement((ROOT / ".ci" / "lock" / "torch.txt").read_text().strip())
    there["torch"] = (str(torch.specifier).removeprefix("=="), 0)
    for one in requirements([*PROJECT["dependencies"], f"coterie[{extras}]"]):
        name = str(canonicalize_name(one.name))
        assert name in there, f"{one.name} is not in .ci/lock/{lock}.txt: run .ci/lock/update"
        assert one.specifier.contains(there[name][0], prereleases=True), f"{one}: locked is {there[name][0]}"
    assert [name for name, (_, hashes) in there.items() if not hashes] == sorted(UNHASHED)
    assert "hatchling" in there  # nothing is built with packages that are not locked


def test_both_locks_agree() -> None:
    dev, distributed = locked("dev"), locked("distributed")
    assert {name: one for name, one in dev.items() if distributed.get(name) != one} == {}


def test_the_licence_of_every_locked_package_is_listed() -> None:
    rows = [line.strip("| ").split(" | ") for line in (ROOT / "docs" / "licences.md").read_text().splitlines()]
    listed = {row[0]: row for row in rows if len(row) == 4}
    for name, (version, _) in locked("distributed").items():
        assert listed[name][1] == version, f"{name}: run `python docs/licences.py`"
        assert listed[name][2].strip(), f"{name} states no licence"
    always = {name: row[2] for name, row in listed.items() if row[3].strip() == "always"}
    assert {"numpy", "torch", "pydantic", "typer"} <= set(always)
    assert not {name: text for name, text in always.items() if re.search(STRONG, text)}
