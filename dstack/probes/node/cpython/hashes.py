"""The hashes of names in another process, by which a dict finds them, as CPython computes them.

Each process has a secret of its own, in a variable of its interpreter. SipHash is in ``Python/pyhash.c``: with 1 and 3
rounds from CPython 3.11 on, before with 2 and 4.
"""

from __future__ import annotations

import struct
import sys

SECRET_BYTES = 16
ROUNDS = {"siphash13": (1, 3), "siphash24": (2, 4)}
"""The rounds for each word and at the end, by the name of the algorithm in ``sys.hash_info``."""
INITIAL = 0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573
WORD = 2**64 - 1


class Hashes:
    """The hashes of names in a process with this secret, of a Python like the reader's own."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._known: dict[str, int] = {}

    def of(self, name: str) -> int:
        """The hash of a name in ASCII, without a sign."""
        if name not in self._known:
            self._known[name] = siphash(self._secret, name.encode("ascii"), *ROUNDS[sys.hash_info.algorithm])
        return self._known[name]


def siphash(secret: bytes, data: bytes, each: int, last: int) -> int:
    """SipHash of these bytes, with so many rounds for each word and at the end, as an object's hash without a sign."""
    first, second = struct.unpack("<QQ", secret)
    state = tuple(word ^ start for word, start in zip((first, second, first, second), INITIAL, strict=True))
    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) & 0xFF])
    for (word,) in struct.iter_unpack("<Q", padded):
        a, b, c, d = state
        a, b, c, d = _mixed(a, b, c, d ^ word, each)
        state = a ^ word, b, c, d
    a, b, c, d = state
    a, b, c, d = _mixed(a, b, c ^ 0xFF, d, last)
    found = a ^ b ^ c ^ d
    return found if found != WORD else WORD - 1  # no object has the hash -1


def _mixed(a: int, b: int, c: int, d: int, rounds: int) -> tuple[int, int, int, int]:
    for _ in range(rounds):
        a, c = a + b & WORD, c + d & WORD
        b, d = (b << 13 | b >> 51) & WORD ^ a, (d << 16 | d >> 48) & WORD ^ c
        a, c = (a << 32 | a >> 32) & WORD, c + b & WORD
        b = (b << 17 | b >> 47) & WORD ^ c
        c, a = (c << 32 | c >> 32) & WORD, a + d & WORD
        d = (d << 21 | d >> 43) & WORD ^ a
    return a, b, c, d


def is_own(secret: bytes) -> bool:
    """Whether this is the secret of the reader's own hashes."""
    rounds = ROUNDS.get(sys.hash_info.algorithm)
    return rounds is not None and siphash(secret, b"_Py_HashSecret", *rounds) == hash("_Py_HashSecret") & WORD
