"""To test a method of your own: `check_method(MyMethod())`, and an `ask` that gives it replies written by hand. To test
a layer: `check_layer(MyLayer)`."""

from __future__ import annotations

from coterie.testing.conformance import MethodCheckError, check_method
from coterie.testing.layer_check import LayerCheckError, check_layer
from coterie.testing.scripted import ScriptedAsk, fitted, make_cohort, make_roster, scored

__all__ = [
    "LayerCheckError",
    "MethodCheckError",
    "ScriptedAsk",
    "check_layer",
    "check_method",
    "fitted",
    "make_cohort",
    "make_roster",
    "scored",
]
