"""FedSoft, Table 2: letters that clients mix, with Cyrillic ones for EMNIST's lower and upper case."""

from __future__ import annotations

from papers.cell import Cell, Claim, Reading, Run, Tree, last, probed
from papers.declared import declared
from papers.tables.baselines import NOTES, alone, majority
from papers.tables.fedsoft import AUTHORS

FEDSOFT: Tree = {"name": "fedsoft", "k": 2, "lam": 0.1, "tau": 2, "sigma": 1e-4, "select": 60}
NEAR: Tree = {"centers_init": "near", "start_from": "centers", "unvoted": "average"}
PRINTED = {"fedsoft": (70.3, 74.6, 90.9), "ifca": (58.5, 61.3, 65.2), "fedem": (67.4, 69.8, 63.6)}
COLUMNS = ("first", "second", "own")  # c*_lo, c*_up, and w-bar
READ: dict[str, Reading] = {
    "first": probed("best", 0, scale=100.0),
    "second": probed("best", 1, scale=100.0),
    "own": probed("own", scale=100.0),
    "own test": probed("own_test", scale=100.0),
}


def _config(views: Tree, model: Tree, keep: bool) -> Tree:
    partition = {"name": "mixture", "clients": 100, "pattern": "10:90", "samples": [100, 200]} | views
    return {
        "data": {"name": "npz", "path": "cyrillic_letters.npz", "partition": partition},
        "model": model,
        "local": {"epochs": 5, "batch": 16, "lr": 0.001, "optimizer": "adam", "keep_optimizer": keep},
        "rounds": 30,
        "evaluate_every": 5,
        "engine": {"name": "sequential"},
        "checkpoint_every": 10,
    }


MILD = _config({"styles": ["thick", "slanted"]}, {"name": "lenet", "init": "xavier-normal"}, keep=True)
MILD_METHODS: dict[str, tuple[Tree, str]] = {
    "fedsoft": (FEDSOFT | NEAR, "centers near a common start, which training starts from"),
    "fedsoft-authors": (FEDSOFT | AUTHORS, "the authors' code: independent centers, training from the own last model"),
    "ifca": ({"name": "ifca", "k": 2}, ""),
    "fedem": ({"name": "fedem", "k": 2}, ""),
}
_STAND_IN = "42 Cyrillic letters, thick and slanted, stand in for EMNIST's lower and upper case"
_TEST = "not in the paper: the same on clients' held-out letters"


def _mild_cells() -> list[Cell]:
    cells = []
    for method, (what, note) in MILD_METHODS.items():
        run = Run(f"fedsoft/letters-mild/{method}", MILD | {"method": what}, "letters", seconds=600)
        printed = dict(zip(COLUMNS, PRINTED[method.removesuffix("-authors")], strict=True))
        for column, read in READ.items():
            said = "; ".join(part for part in (_STAND_IN, note, _TEST if column not in printed else "") if part)
            cells.append(Cell(method, column, run, read, printed.get(column), note=said, comparable=False))
    place = "fedsoft/letters-mild"
    most, single = majority(place, MILD), alone(place, MILD, 600)
    return [
        *cells,
        Cell("majority", "own test", most, probed("majority", "accuracy", scale=100.0), None, note=NOTES["majority"]),
        Cell("local", "own test", single, last(), None, note=NOTES["local"]),
    ]


# ------------------------------------------------------------------------- run first: a turn by 90 degrees

_TURNED = (
    "run first: a turn by 90 degrees for upper case, which is no mild difference; only FedSoft keeps Adam's moments"
)


def _turned(method: str, what: Tree) -> Run:
    config = _config({"angles": [0, 90]}, {"name": "lenet"}, keep=method == "fedsoft")
    return Run(f"fedsoft/letters/{method}", config | {"method": what}, "letters", seconds=600)


def _turned_cells() -> list[Cell]:
    methods: dict[str, Tree] = {
        "fedsoft": FEDSOFT | AUTHORS,
        "ifca": {"name": "ifca", "k": 2},
        "fedem": {"name": "fedem", "k": 2},
    }
    return [
        Cell(f"turned {method}", column, _turned(method, what), READ[column], paper, note=_TURNED, comparable=False)
        for method, what in methods.items()
        for column, paper in zip(COLUMNS, PRINTED[method], strict=True)
    ]


TABLE2 = declared(
    "fedsoft-table2",
    cells=(*_mild_cells(), *_turned_cells()),
    claims=(
        Claim(
            "FedSoft's personal models are the best of the three",
            lambda ours: ours("fedsoft/own") > max(ours("ifca/own"), ours("fedem/own")),
            place="Experiments, Table 2 (training accuracy)",
        ),
        Claim(
            "FedSoft's personal models are the best of the three on held-out letters too",
            lambda ours: ours("fedsoft/own test") > max(ours("ifca/own test"), ours("fedem/own test")),
            place="not the paper's, which reports training accuracy",
        ),
        Claim(
            "FedSoft's centers are above IFCA's",
            lambda ours: ours("fedsoft/first") > ours("ifca/first") and ours("fedsoft/second") > ours("ifca/second"),
            place="Experiments, Table 2",
        ),
    ),
)
TABLES = (TABLE2,)
