"""Changes of valid inputs: bytes flipped, numbers made extreme, parts cut, repeated, swapped, words put in."""

from __future__ import annotations

import random
from collections.abc import Sequence

LONGEST = 1 << 16  # bytes of an input
NUMBERS = (b"0", b"-1", b"1e999", b"NaN", b"9" * 40, b"9" * 5000, b"0x7fffffff", b"1_0", b"null", b"true", b"\xff\xfe")
MARKS = (b"{", b"}", b"[", b"]", b'"', b",", b":", b"\n", b"\r", b"\x00", b"&a *a", b"!!python/object:os.system x")
NAMES = (b"../../etc/passwd", b"/dev/zero", b"~root", b"%s%n", b"\xf0\x9f\x92\xa5", b"a" * 300)
WORDS = (*NUMBERS, *MARKS, *NAMES)
EXTREME = tuple(n.to_bytes(4, order) for n in (0, 1, 2**31 - 1, 2**31, 2**32 - 1) for order in ("little", "big"))


def mutated(data: bytes, draw: random.Random, words: Sequence[bytes], others: Sequence[bytes]) -> bytes:
    """One to five changes. others: inputs whose parts may be put in."""
    out = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 2, 3, 5))):
        _change(out, draw, words, others)
    return bytes(out[:LONGEST])


def _change(out: bytearray, draw: random.Random, words: Sequence[bytes], others: Sequence[bytes]) -> None:
    at = draw.randrange(len(out) + 1)
    until = min(len(out), at + draw.choice((1, 1, 2, 4, 8, 32, 256)))
    match draw.randrange(9):
        case 0 if at < len(out):
            out[at] = draw.randrange(256)
        case 1 if at < len(out):
            out[at] ^= 1 << draw.randrange(8)
        case 2:
            del out[at:until]
        case 3:
            del out[at:]
        case 4:
            out[at:at] = out[at:until] * draw.choice((1, 2, 50))
        case 5:
            out[at:until] = draw.choice(EXTREME)
        case 6:
            other = draw.choice(others)
            start = draw.randrange(len(other) + 1)
            out[at:until] = other[start : start + draw.choice((4, 64, 1024))]
        case _:
            word = draw.choice(words) if words and draw.random() < 0.5 else draw.choice(WORDS)
            out[at : until if draw.random() < 0.5 else at] = word
