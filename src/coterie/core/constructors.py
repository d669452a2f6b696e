"""Constructors that raise the library's own error for a wrong argument, with the nearest valid name."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, dataclass_transform

from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass

from coterie.core.errors import ArgumentError, suggest
from coterie.core.validation import explain

T = TypeVar("T")
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
