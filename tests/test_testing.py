"""The public names, and `check_method`: the library's own methods pass, and each broken toy fails its check."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import random
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import coterie
from conftest import few, raises
from coterie import (
    All,
    Ask,
    ByClient,
    Cohort,
    CoterieError,
    Evaluate,
    Fit,
    Local,
    Model,
    NoAnswerError,
    Pick,
    QuorumError,
    Roster,
    Score,
    mean_by,
)
from coterie.core.registry import METHODS, NO_CODE
from coterie.testing import MethodCheckError, ScriptedAsk, check_method, fitted, make_cohort, make_roster, scored
from coterie.testing.conformance import CHECKS, carry_out, new_trial

ROOT = Path(__file__).parent.parent


# ---------------------------------------------------------------------------------------------- the public names


def declared(module: ModuleType) -> dict[str, str]:
    """What a module's block for type checkers imports: the names, and where they come from."""
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).read_text())
    block = next(n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING")
    found: dict[str, str] = {}
    for line in block.body:
        assert isinstance(line, ast.ImportFrom)
        assert line.module is not None
        for alias in line.names:
            assert alias.asname == alias.name, "`as` the same name is what makes it public to a type checker"
            found[alias.name] = line.module
    return found


@pytest.mark.parametrize("module", ["coterie", "coterie.data"])
def test_type_checkers_are_told_the_names_that_there_are(module: str) -> None:
    package = importlib.import_module(module)
    told = declared(package)
    rooms = dict.fromkeys(getattr(package, "_ROOMS", ()), module)
    assert told == package._WHERE | rooms
    assert sorted({*told, *(["__version__"] if module == "coterie" else [])}) == package.__all__
    assert dir(package) == package.__all__
    for name in package.__all__:
        assert getattr(package, name) is not None


def test_every_method_of_the_catalogue_is_public() -> None:
    for name, place in METHODS.places.items():
        assert getattr(coterie, place.partition(":")[2]) is METHODS.find(name, NO_CODE)


def test_importing_the_library_imports_neither_torch_nor_numpy() -> None:
    code = (
        "import sys, coterie; coterie.CoterieError; heavy = {'torch', 'numpy', 'pydantic'} & set(sys.modules);"
        "assert not heavy, heavy; coterie.zoo.MLP, coterie.data.MNIST, coterie.testing.check_method"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_own_method_needs_public_names_only() -> None:
    example = (ROOT / "examples" / "own_method.py").read_text()
    page = (ROOT / "docs" / "your-own.md").read_text()
    snippets = [example, *re.findall(r"```python\n(.*?)```", page, re.DOTALL)]
    public = {"coterie", *(f"coterie.{room}" for room in coterie._ROOMS)}
    for node in (node for snippet in snippets for node in ast.walk(ast.parse(snippet))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("coterie"):
            assert node.module in public
            assert {alias.name for alias in node.names} <= set(importlib.import_module(str(node.module)).__all__)
        elif isinstance(node, ast.Import):
            assert all(a.name in public for a in node.names if a.name.startswith("coterie"))
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "coterie":
            assert node.attr in coterie.__all__


# ---------------------------------------------------------------------------------------------------- a scripted ask


def test_a_scripted_ask_answers_in_order_and_notes_what_it_was_asked() -> None:
    reply = fitted({3: [1.0, 2.0]}, n=[5])
    ask = ScriptedAsk(reply, lambda task: scored({1: [task.centers.sum().item(), 0.0]}))
    fit, score = Fit(All(torch.zeros(2)), Local()), Score(torch.ones(2, 2))
    assert ask(fit) is reply
    assert not ask.done
    assert ask(score).scores.tolist() == [[4.0, 0.0]]
    assert ask.done
    assert ask.asked == [fit, score]
    with pytest.raises(AssertionError, match="asked 3 times, more often than the script"):
        ask(fit)


def test_a_method_can_be_worked_out_by_hand() -> None:
    roster = make_roster({2: 10, 5: 30})
    ask = ScriptedAsk(fitted({2: [0.0, 4.0], 5: [8.0, 0.0]}, n=[10, 30]))
    state = coterie.FedAvg().round(torch.zeros(2), make_cohort([2, 5], roster), ask)
    assert state.tolist() == [6.0, 1.0]


# ----------------------------------------------------------------------------- the library's methods keep the promises

WRAPPERS = ("cam",)  # which must be given a base
NEED_MORE = (*WRAPPERS, "personal", "ifca-personal", "pacfl")
SETTLED: dict[str, dict[str, Any]] = {  # beyond their warm-up within the check's two or three rounds
    **{name: {"base": coterie.WeCFL(k=2), "warmup": 1} for name in WRAPPERS},
    "fl+hc": {"warmup": 1},
    # The check's model is a single layer, all of it a head: nothing would be left to share.
    "personal": {"base": coterie.WeCFL(k=2), "section": ("*bias",)},
    "ifca-personal": {"section": ("*bias",)},
    "pacfl": {"rank": 1},  # three directions of the few inputs of the check are near to any other three
    **{name: {"warmup": 0} for name in METHODS.places if name.endswith("-cam")},
}


SOME = ("halves", "ditto", "wecfl", "fedem", "stocfl")


@pytest.mark.parametrize("name", few((name for name in METHODS.places if name not in NEED_MORE), *SOME))
def test_every_method_passes_with_its_defaults(name: str) -> None:
    check_method(METHODS.build(name, {}, NO_CODE))


@pytest.mark.parametrize("name", few(SETTLED, "cam", "fl+hc", "ifca-cam"))
def test_every_method_passes_after_its_warm_up(name: str) -> None:
    check_method(METHODS.find(name, NO_CODE)(**SETTLED[name]))


def test_model_and_data_may_be_the_users_own() -> None:
    rng = np.random.default_rng(0)
    arrays = [(x := rng.normal(size=(12, 5)).astype(np.float32), (x[:, :1] * 2).astype(np.float32)) for _ in range(5)]
    check_method(Good(), model=lambda: nn.Linear(5, 1), federation=arrays)
    with raises("argument-invalid", match="has 3 clients; give at least 4"):
        check_method(Good(), model=lambda: nn.Linear(5, 1), federation=arrays[:3])


def test_a_check_leaves_the_global_generators_as_they_were() -> None:
    before = torch.get_rng_state(), random.getstate(), str(np.random.get_state())
    check_method(Good())
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), str(np.random.get_state())) == before[1:]


# --------------------------------------------------------------------------------------- a good toy, and broken ones


@dataclass(frozen=True, eq=False)
class Groups:
    centers: Tensor
    labels: ByClient


@dataclass(frozen=True)
class Good:
    """Two clusters by the least loss; the server remembers who is in which."""

    local: Local = Local(steps=3, lr=0.2)

    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> Any:
        return Groups(torch.stack([model.init(rng), model.init(rng)]), ByClient.empty())

    def place(self, state: Groups, cohort: Cohort, ask: Ask) -> ByClient:
        reply = ask(Score(state.centers, on=cohort.ids))
        return state.labels.put(reply.ids, reply.scores.argmin(1))

    def round(self, state: Groups, cohort: Cohort, ask: Ask) -> Any:
        labels = self.place(state, cohort, ask)
        here = cohort.ids[labels.has(cohort.ids)]
        reply = ask(Fit(Pick(state.centers, labels), self.local, on=here))
        return Groups(mean_by(labels.at(reply.ids), reply, reply.n, empty=state.centers), labels)

    def predictor(self, state: Groups) -> Any:
        return Evaluate((Pick(state.centers, state.labels),))

    def admit(self, state: Groups, cohort: Cohort, ask: Ask) -> Any:
        new = dataclasses.replace(cohort, ids=cohort.ids[~state.labels.has(cohort.ids)])
        return Groups(state.centers, self.place(state, new, ask)) if len(new.ids) else state


class NoPredictor(Good):
    predictor = None  # type: ignore[assignment]


class RoundOfTwo(Good):
    def round(self, state: Any, cohort: Any) -> Any:  # type: ignore[override]
        return state


class AdmitOfOne(Good):
    def admit(self, state: Any) -> Any:  # type: ignore[override]
        return state


@dataclass
class Mutable:
    init, place, round, predictor, admit = Good.init, Good.place, Good.round, Good.predictor, Good.admit
    local: Local = Good.local


class NoDataclass:
    init, place, round, predictor, admit = Good.init, Good.place, Good.round, Good.predictor, Good.admit
    local: Local = Good.local


class PredictsABareReference(Good):
    def predictor(self, state: Groups) -> Any:
        return Pick(state.centers, state.labels)


class ReturnsNothing(Good):
    def round(self, state: Groups, cohort: Cohort, ask: Ask) -> Any:
        super().round(state, cohort, ask)


class AsksForWhatIsNotThere(Good):
    def round(self, state: Groups, cohort: Cohort, ask: Ask) -> Any:
        ask(Fit(Pick(state.centers, state.labels.put(cohort.ids[1:], cohort.ids[1:] * 0)), self.local))
        return super().round(state, cohort, ask)


@dataclass(frozen=True, eq=False)
class Keeping(Groups):
    kept: Any = None


@dataclass(frozen=True)
class Keeps(Good):
    """Has something in its state that a checkpoint cannot give back."""

    kept: Any = None

    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> Any:
        start = super().init(model, roster, rng)
        return Keeping(start.centers, start.labels, self.kept)

    def round(self, state: Any, cohort: Cohort, ask: Ask) -> Any:
        after = super().round(state, cohort, ask)
        return Keeping(after.centers, after.labels, state.kept)


@dataclass
class Loose:
    """A dataclass that is not frozen."""

    number: int = 1


class DrawsGloballyInInit(Good):
    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> Any:
        return Groups(0.1 * torch.randn(2, len(model.init(rng))), ByClient.empty())


class ChangesItsState(Good):
    def round(self, state: Groups, cohort: Cohort, ask: Ask) -> Any:
        after = super().round(state, cohort, ask)
        state.centers.mul_(0.5)
        return after


class DrawsGloballyInRounds(Good):
    def round(self, state: Groups, cohort: Cohort, ask: Ask) -> Any:
        after = super().round(state, cohort, ask)
        return Groups(after.centers + 0.01 * np.random.rand(), after.labels)


class KnowsWhoWasThereFirst(Good):
    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> Any:
        return Groups(super().init(model, roster, rng).centers, ByClient(roster.ids, roster.n % 2))

    def round(self, state: Groups, cohort: Cohort, ask: Ask) -> Any:
        reply = ask(Fit(Pick(state.centers, state.labels), self.local))
        return Groups(mean_by(state.labels.at(reply.ids), reply, reply.n, empty=state.centers), state.labels)


class IndexesWithIds(Good):
    def round(self, state: Groups, cohort: Cohort, ask: Ask) -> Any:
        torch.zeros(10)[cohort.ids] += 1
        return super().round(state, cohort, ask)


class GoesByPosition(Good):
    def place(self, state: Groups, cohort: Cohort, ask: Ask) -> ByClient:
        return state.labels.put(cohort.ids, torch.arange(len(cohort.ids)) // 3 % 2)


class CountsOnEveryReply(Good):
    def round(self, state: Groups, cohort: Cohort, ask: Ask) -> Any:
        reply = ask(Fit(All(state.centers[0]), self.local))
        if len(reply.ids):
            assert len(cohort.ids) == len(reply.models)
        return super().round(state, cohort, ask)


class DividesByNobody(Good):
    def round(self, state: Groups, cohort: Cohort, ask: Ask) -> Any:
        size = dict(zip(cohort.roster.ids.tolist(), cohort.roster.n.tolist(), strict=True))
        labels = state.labels.put(cohort.ids, torch.tensor([size[c] % 2 for c in cohort.ids.tolist()]))
        reply = ask(Fit(Pick(state.centers, labels), self.local))
        if not len(reply.ids):
            return state
        rows = [reply.models[labels.at(reply.ids) == k].mean(0) for k in (0, 1)]
        return Groups(torch.stack(rows), labels)


class SpoiledByNobody(Good):
    def round(self, state: Groups, cohort: Cohort, ask: Ask) -> Any:
        try:
            return super().round(state, cohort, ask)
        except (NoAnswerError, QuorumError):
            return Groups(state.centers * torch.nan, state.labels)


class KnowsNoNewcomers(Good):
    admit = None  # type: ignore[assignment]


class AdmitsByTraining(Good):
    def admit(self, state: Groups, cohort: Cohort, ask: Ask) -> Any:
        after = super().admit(state, cohort, ask)
        return state if after is state else Groups(after.centers * 1.5, after.labels)


class AdmitsInPlace(Good):
    def admit(self, state: Groups, cohort: Cohort, ask: Ask) -> Any:
        after = super().admit(state, cohort, ask)
        state.labels.values.add_(0 if after is state else 1)
        return Groups(state.centers.clone(), after.labels)


class HidesSomething(Good):
    """Keeps a count of rounds in the method itself."""

    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> Any:
        object.__setattr__(self, "seen", 0)
        return super().init(model, roster, rng)

    def round(self, state: Groups, cohort: Cohort, ask: Ask) -> Any:
        object.__setattr__(self, "seen", self.seen + 1)  # type: ignore[attr-defined]
        after = super().round(state, cohort, ask)
        return Groups(after.centers * self.seen, after.labels)  # type: ignore[attr-defined]


class ReadsTheLastBit(Good):
    def round(self, state: Groups, cohort: Cohort, ask: Ask) -> Any:
        cohort.rng.random()
        reply = ask(Fit(All(state.centers[0]), self.local))
        odd = int((reply.models.view(torch.int32) % 2).sum()) if len(reply.ids) else 0
        after = super().round(state, cohort, ask)
        return Groups(after.centers * (1 + odd / 100), after.labels)


BROKEN: list[tuple[Any, str]] = [
    (Mutable(), "is_a_frozen_dataclass"),
    (NoDataclass(), "is_a_frozen_dataclass"),
    (Keeps(kept={0: 1}), "state_can_be_saved"),
    (Keeps(kept=[1, 2]), "state_can_be_saved"),
    (Keeps(kept=Loose()), "state_can_be_saved"),
    (DrawsGloballyInInit(), "init_depends_on_its_rng_only"),
    (ChangesItsState(), "round_leaves_its_state_alone"),
    (DrawsGloballyInRounds(), "same_seed_same_bits"),
    (KnowsWhoWasThereFirst(), "allows_partial_participation"),
    (IndexesWithIds(), "ids_are_ids"),
    (GoesByPosition(), "ids_are_ids"),
    (CountsOnEveryReply(), "survives_missing_replies"),
    (DividesByNobody(), "keeps_empty_clusters"),
    (SpoiledByNobody(), "survives_no_replies"),
    (KnowsNoNewcomers(), "predicts_for_everyone"),
    (AdmitsByTraining(), "admits_without_training"),
    (AdmitsInPlace(), "admits_without_training"),
    (HidesSomething(), "resumes_where_it_stopped"),
    (ReadsTheLastBit(), "engines_agree"),
]
HOPELESS: list[tuple[Any, str, str]] = [  # no later check can say anything of these
    (NoPredictor(), "has_the_functions", "there is no function predictor"),
    (RoundOfTwo(), "has_the_functions", "round does not take these 3 arguments"),
    (AdmitOfOne(), "has_the_functions", "admit does not take these 3 arguments"),
    (Good, "has_the_functions", r"write check_method\(MyMethod\(\)\)"),
    (PredictsABareReference(), "trains_and_predicts", "predictor returned a Pick, not an Evaluate"),
    (ReturnsNothing(), "trains_and_predicts", "returned None"),
    (AsksForWhatIsNotThere(), "trains_and_predicts", "client 0: .*no value for this client"),
    (Keeps(kept={1, 2}), "state_can_be_saved", "cannot write down a set"),
]


def test_the_good_toy_passes_and_every_check_has_a_toy_that_fails_it() -> None:
    check_method(Good())
    assert {check.__name__ for check in CHECKS} == {name for _, name in BROKEN} | {name for _, name, _ in HOPELESS}


def test_the_page_lists_the_checks() -> None:
    page = (ROOT / "docs" / "your-own.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == [check.__name__ for check in CHECKS]


@pytest.mark.parametrize(
    ("toy", "name"),
    # Every second one is for every day.
    [pytest.param(*case, marks=pytest.mark.exhaustive if turn % 2 else ()) for turn, case in enumerate(BROKEN)],
    ids=lambda it: it if isinstance(it, str) else type(it).__name__,
)
def test_a_broken_method_fails_exactly_its_check(toy: Any, name: str) -> None:
    trial, failed = new_trial(toy), {}
    for check in CHECKS:
        try:
            carry_out(check, trial)
        except MethodCheckError as error:
            failed[error.check] = str(error)
    assert list(failed) == [name], failed
    with pytest.raises(MethodCheckError, match=f"^{type(toy).__name__}: {name}: "):
        check_method(toy)


@pytest.mark.parametrize(("toy", "name", "said"), HOPELESS, ids=lambda it: it if isinstance(it, str) else "")
def test_a_hopeless_method_is_told_why(toy: Any, name: str, said: str) -> None:
    with pytest.raises(MethodCheckError, match=said) as error:
        check_method(toy)
    assert error.value.check == name
    assert isinstance(error.value, CoterieError)
    assert isinstance(error.value, AssertionError)
