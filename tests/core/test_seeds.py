"""Random streams are keyed by what they are for: order does not matter, every word does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coterie.core.seeds import Purpose, draw_seed, generator

Key = tuple[int, Purpose, tuple[int, int, int]]
words = st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
keys: st.SearchStrategy[Key] = st.tuples(st.integers(0, 50), st.sampled_from(Purpose), words)


def stream(key: Key) -> list[int]:
    seed, purpose, rest = key
    numbers: list[int] = generator(seed, purpose, *rest).integers(2**62, size=4).tolist()
    return numbers


@given(st.lists(keys, min_size=2, max_size=6, unique=True))
def test_streams_do_not_depend_on_the_order_they_are_drawn_in(several: list[Key]) -> None:
    forwards = {key: stream(key) for key in several}
    assert {key: stream(key) for key in reversed(several)} == forwards


@given(keys, keys)
def test_every_word_of_the_key_matters(one: Key, other: Key) -> None:
    assert (stream(one) == stream(other)) == (one == other)


def test_the_order_of_words_matters() -> None:
    assert stream((0, Purpose.BATCHES, (1, 2, 3))) != stream((0, Purpose.BATCHES, (3, 2, 1)))


def test_the_number_of_words_matters() -> None:
    """A seed sequence alone cannot tell [1] from [1, 0]."""
    streams = [generator(0, Purpose.COHORT, *words).integers(2**62) for words in ((), (0,), (0, 0), (1,), (1, 0))]
    assert len(set(streams)) == len(streams)


def test_no_two_purposes_share_a_stream() -> None:
    streams = {tuple(stream((0, purpose, (0, 0, 0)))) for purpose in Purpose}
    assert len(streams) == len(Purpose)


def test_drawn_seeds_follow_the_generator_and_differ_from_one_another() -> None:
    first, second = generator(3, Purpose.INIT), generator(3, Purpose.INIT)
    drawn = [draw_seed(first) for _ in range(20)]
    assert drawn == [draw_seed(second) for _ in range(20)]
    assert len(set(drawn)) == 20
    assert all(0 <= seed < 2**63 for seed in drawn)
