"""The registry of engines is the one list of their names."""

from typing import get_args

from conftest import linear, make_federation, raises
from coterie.engines.choose import AUTO, ENGINES, EngineName, make_engine
from coterie.training.config import EngineConfig


def test_every_name_that_can_be_written_has_an_engine() -> None:
    assert get_args(EngineName) == (*ENGINES, AUTO)
    assert get_args(EngineConfig.model_fields["name"].annotation) == get_args(EngineName)


def test_an_unknown_engine_is_refused_with_the_known_ones() -> None:
    with (
        raises("config-unknown-name", match=r"unknown engine 'batch'.*Did you mean 'batched'.*auto, batched, ray"),
        make_engine("batch", linear(), make_federation(), None),
    ):
        pass


def test_the_sequential_engine_has_no_workers() -> None:
    with (
        raises("config-conflict"),
        make_engine("sequential", linear(), make_federation(), 2),
    ):
        pass
