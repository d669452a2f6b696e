"""Settings: dataclasses that check their values, the domains of those, and errors in plain words."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, ParamSpec, TypeAlias, TypeVar, dataclass_transform, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass

from coterie.core.errors import ArgumentError, CoterieError, suggest

# Of every class of settings: an unknown key is an error, and so are NaN and infinity.
STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)

Cosine: TypeAlias = Annotated[float, Field(ge=-1, le=1)]
Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]
ShareBelowOne: TypeAlias = Annotated[float, Field(ge=0, lt=1)]
ShareAboveZero: TypeAlias = Annotated[float, Field(gt=0, le=1)]

Kind: TypeAlias = Literal["classification", "regression"]  # of what labels are

# Of a partition: the share of each client's samples that is held out, or the data set's official test set, dealt out
# as its training set is. auto: official where there is one, otherwise a fifth.
TestSplit: TypeAlias = ShareBelowOne | Literal["official", "auto"]


T = TypeVar("T")
UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
MUST = "must be "
# What a type of pydantic's faults asks for, in words.
WANTED = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    "finite_number": "a finite number",
    "string_type": "text",
    "dict_type": "keys and values",
    **dict.fromkeys(("list_type", "tuple_type"), "a list"),
}
RANGE = ("greater_than", "greater_than_equal", "less_than", "less_than_equal")


def explain(error: ValidationError, prefix: str, kind: Any, *, named: bool = True) -> CoterieError:
    """One line per key, each naming the full key. named: whether it has a `name` besides its own keys."""
    faults: dict[str, list[tuple[str, str, str]]] = {}  # per key: type, what is wrong, what was given
    for fault in error.errors():
        *above, last = fault["loc"] or ("",)
        loc = [str(part) for part in above if not _is_branch(str(part))]
        if fault["loc"] and (fault["type"] in UNKNOWN or not _is_branch(str(last))):  # an unknown key is as written
            loc.append(str(last))
        if not named and loc and loc[0].isdigit() and int(loc[0]) < len(_keys(kind, [])):
            loc[0] = _keys(kind, [])[int(loc[0])]  # given by its place
        key = ".".join([*([prefix] if prefix else []), *loc])
        if fault["type"] in UNKNOWN:
            keys = _keys(kind, loc[:-1]) + (["name"] if named and prefix and len(loc) == 1 else [])
            said = unknown_key(kind, loc[-1], keys, loc[:-1])
            said = _moved(kind, loc, fault["input"], prefix, named) or said
        elif fault["type"] == "missing":
            said = "required, but not given"
        elif fault["type"] == "unexpected_positional_argument":
            said, loc, key = f"takes {len(_keys(kind, []))} arguments: {', '.join(_keys(kind, []))}", [], prefix
        elif fault["type"] in ("dataclass_type", "model_type", "model_attributes_type"):
            said = f"expected keys and values, such as {{'{_first_key(kind, loc)}': ...}}"
            if not named and fault["type"] == "dataclass_type":
                said = f"expected {fault['ctx']['class_name']}(...)"
        else:
            said = _moved(kind, loc, fault["input"], prefix, named) or _wanted(fault)
        shown = not loc or isinstance(fault["input"], dict) or "unknown key" in said or fault["type"] == "missing"
        faults.setdefault(key, []).append((fault["type"], said, "" if shown else f" (got {fault['input']!r})"))
    lines = []
    for key, found in faults.items():
        # A union complains once per member; a value out of range has found its member.
        ranged = [f for f in found if f[0] in RANGE] or found
        words = _either(list(dict.fromkeys(f[1] for f in ranged))) + ranged[0][2]
        lines.append(f"{key}: {words}" if key else words)
    return CoterieError("\n".join(lines), code=_code(error.errors()[0]["type"], named))


def _wanted(fault: Mapping[str, Any]) -> str:
    """What is wrong with a value, as a sentence that begins with its key."""
    if fault["type"] in WANTED:
        return MUST + WANTED[fault["type"]]
    said = str(fault["msg"]).removeprefix("Value error, ")
    return MUST + said.removeprefix("Input should be ") if said.startswith("Input should be ") else said


def _either(said: list[str]) -> str:
    """Several of them, where any would do: must be a number or 'auto'."""
    if MUST + WANTED["float_type"] in said:  # which a whole number is, too
        said = [one for one in said if one != MUST + WANTED["int_type"]]
    return " or ".join([said[0], *(one.removeprefix(MUST) if said[0].startswith(MUST) else one for one in said[1:])])


def _code(fault: str, named: bool) -> str:
    """The code for a type of pydantic's, in a configuration (`named`) or in the arguments of a constructor."""
    if fault in UNKNOWN:
        return "config-unknown-key" if named else "argument-unknown"
    if fault == "missing":
        return "config-missing-key" if named else "argument-missing"
    return "config-invalid-value" if named else "argument-invalid"


def _moved(kind: Any, loc: list[str], value: object, prefix: str, named: bool) -> str | None:
    """What to write instead of an option that another method has now."""
    name = getattr(kind, "__name__", "")
    return instead_of(name, loc[0], value, prefix, in_python=not named) if len(loc) == 1 else None


def _is_branch(part: str) -> bool:
    """pydantic names the member of a union it tried; a user never wrote that."""
    return part in ("int", "float", "str") or "[" in part or part.startswith("constrained")


def unknown_key(kind: Any, key: str, keys: Sequence[str], path: Sequence[str] = (), prefix: str = "") -> str:
    """What to write instead of a key: where another key has it inside, as the base of a method around one, that."""
    try:
        inside = [f"{prefix}{one}.{key}" for one in keys if key in _keys(kind, [*path, one])]
    except (NameError, TypeError):  # a user's class whose annotations cannot be resolved
        inside = []
    return f"unknown key. Did you mean '{inside[0]}'?" if inside else f"unknown key.{suggest(key, keys)}"


def _keys(kind: Any, path: list[str]) -> list[str]:
    for part in path:
        kind = get_type_hints(kind).get(part, object)
        kind = next((a for a in get_args(kind) if _fields(a)), kind)
    return _fields(kind)


def _first_key(kind: Any, path: list[str]) -> str:
    """Of what is expected there: its `name`, or the first key where it has none (privacy: epsilon)."""
    keys = _keys(kind, path)
    return keys[0] if keys and "name" not in keys else "name"


def _fields(kind: Any) -> list[str]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return list(kind.model_fields)
    return [f.name for f in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []


def settings_from(kind: type[T], **values: object) -> T:
    """A validated settings object, its errors in plain words."""
    try:
        return TypeAdapter(kind).validate_python(values)
    except ValidationError as error:
        raise explain(error, "", kind) from None


def instead_of(kind: str, key: str, value: object, prefix: str, in_python: bool = False) -> str | None:
    """What to write instead of a number of clusters for the method that measures it, else None. kind: its class."""
    if (kind, key) != ("Halves", "k"):
        return None
    written = f"coterie.WeCFL(k={value})" if in_python else f"{prefix}.name=wecfl {prefix}.k={value}"
    return f"unknown key, Halves measures the number of clusters; to give it, write {written}"


P = ParamSpec("P")
R = TypeVar("R")


@dataclass_transform(field_specifiers=(dataclasses.field, Field))
def dataclass(*, frozen: bool, config: ConfigDict) -> Callable[[type[T]], type[T]]:
    """A pydantic dataclass whose constructor raises CoterieError. TypeAdapter, which explains with the configuration's
    own keys, does not use the constructor and still raises ValidationError."""
    make: Any = pydantic_dataclass(frozen=frozen, config=config)

    def decorate(cls: type[T]) -> type[T]:
        made: type[T] = make(cls)
        construct: Callable[..., None] = made.__init__

        @functools.wraps(construct)
        def init(self: Any, /, *args: Any, **kwargs: Any) -> None:
            try:
                construct(self, *args, **kwargs)
            except ValidationError as error:
                kind = type(self)
                fault = explain(error, kind.__name__, kind, named=False)
                raise ArgumentError(str(fault), code=fault.code) from None

        made.__init__ = init  # type: ignore[method-assign, assignment]
        return made

    return decorate


def explained(cls: type[T]) -> type[T]:
    """For plain dataclasses: arguments that the constructor does not take, or lacks, are a CoterieError."""
    construct: Callable[..., None] = cls.__init__

    @functools.wraps(construct)
    def init(self: Any, /, *args: Any, **kwargs: Any) -> None:
        try:
            construct(self, *args, **kwargs)
        except TypeError:
            usage = getattr(self, "usage", "")
            _check_arguments(type(self).__name__, construct, (self, *args), kwargs, usage)
            raise

    cls.__init__ = init  # type: ignore[method-assign, assignment]
    return cls


def explained_call(function: Callable[P, R]) -> Callable[P, R]:
    """The same for a public function."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        _check_arguments(function.__name__, function, args, kwargs)
        return function(*args, **kwargs)

    return call


def _check_arguments(
    name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], usage: str = ""
) -> None:
    """Raise if these are not valid arguments of the function."""
    signature = inspect.signature(function)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        known = [p for p in signature.parameters.values() if p.name != "self"]
        usage = usage or _call(name, known)
        unknown = [key for key in kwargs if key not in signature.parameters]
        if unknown:
            hint = suggest(unknown[0], [p.name for p in known])
            raise ArgumentError(f"{name}: unknown argument '{unknown[0]}'.{hint}", code="argument-unknown") from None
        given = {*kwargs, *list(signature.parameters)[: len(args)]}
        missing = [p.name for p in known if p.default is p.empty and p.name not in given]
        if missing:
            raise ArgumentError(
                f"{name}.{missing[0]}: required, but not given; write {usage}", code="argument-missing"
            ) from None
        raise ArgumentError(f"{name}: {error}; write {usage}") from None


def _call(name: str, parameters: list[inspect.Parameter]) -> str:
    required = [p.name for p in parameters if p.default is p.empty]
    return f"{name}({', '.join(required)}{', ...' if len(required) < len(parameters) else ''})"
