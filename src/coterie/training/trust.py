"""Consent to the code that a run directory names: directories are shared, and none imports anything unless allowed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from coterie.core.registry import Consent

if TYPE_CHECKING:
    from coterie.training.settings import Settings  # imports torch, which the command line does without

TRUST = 'coterie.load(dir, trust=["{name}"]), or --trust {name} on the command line'
NAMES = ("name", "loss", "kind", "other", "partition", "base", "method", "model", "data")  # keys that may name code

S = TypeVar("S", bound="Settings")


def consent_of(run_dir: Path, trust: Sequence[str], how: str = TRUST) -> Consent:
    """To the code that a run directory names: what was said to be trusted and nothing else."""
    return Consent(frozenset(trust), source=str(run_dir / "config.yaml"), how=how)


def with_attack(settings: S, consent: Consent) -> S:
    """With the function of an attack of the user's own, imported."""
    attack = settings.attack
    if attack is None or not isinstance(attack.kind, str) or ":" not in attack.kind:
        return settings
    return replace(settings, attack=replace(attack, kind=attack.attacker(consent)))


def trust_words(tree: Mapping[str, Any]) -> str:
    """What to add to the command that resumes a run of this configuration."""
    return "".join(f" --trust {name}" for name in dict.fromkeys(name for _, name in named_code(tree)))


def named_code(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Every `module:Name` of a configuration, with its key."""
    for key, value in tree.items():
        where = f"{above}{key}"
        if isinstance(value, Mapping):
            yield from named_code(value, f"{where}.")
        elif isinstance(value, str) and ":" in value and key in NAMES:
            yield where, value
