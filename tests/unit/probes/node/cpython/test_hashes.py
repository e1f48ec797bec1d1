"""Names have the hashes that Python gives them, and lead to what dicts have under them."""

from __future__ import annotations

import os
import random

import pytest

from dstack.probes.node.cpython.hashes import WORD
from dstack.probes.node.cpython.memory import open_memory
from tests.fuzzing.effort import tries
from tests.unit.support.own_process import own_hashes, own_objects


def names(rng: random.Random, count: int) -> list[str]:
    return ["".join(rng.choices("_abcXYZ019.", k=rng.randint(1, 70))) for _ in range(count)]


def test_a_name_has_the_hash_that_python_gives_it() -> None:
    hashes = own_hashes()

    for name in names(random.Random(0), 2_000):
        assert hashes.of(name) == hash(name) & WORD
        assert hashes.of(name) == hash(name) & WORD


class Plain:
    """An instance whose class has the names of its attributes."""


@pytest.mark.parametrize("seed", range(tries(200)))
def test_a_dict_of_any_history_has_under_each_name_what_python_finds(seed: int) -> None:
    rng = random.Random(seed)
    known = list(dict.fromkeys(names(rng, rng.choice((3, 20, 300, 3_000)))))
    table: dict[object, object] = {}
    plain = Plain()
    for _ in range(2 * len(known)):
        name = rng.choice(known)
        for values in (table, vars(plain)):
            values[name] = object()
            if rng.random() < 0.4:
                del values[name]
    if rng.random() < 0.3:
        table[7] = object()  # an entry then has its hash, too

    with open_memory(os.getpid(), keeps_pages=True) as memory:
        objects = own_objects(memory)
        for name in known:
            assert objects.value_of(id(table), name) == (id(table[name]) if name in table else 0)
            assert objects.find_attribute(id(plain), name) == (id(vars(plain)[name]) if name in vars(plain) else 0)


def test_attributes_are_found_where_a_class_shares_their_names() -> None:
    several = [Plain() for _ in range(3)]
    for one in several:
        one.first, one.second = object(), object()  # type: ignore[attr-defined]
    del several[1].first  # type: ignore[attr-defined]

    with open_memory(os.getpid(), keeps_pages=True) as memory:
        objects = own_objects(memory)
        for one in several:
            for name in ("first", "second", "third"):
                assert objects.find_attribute(id(one), name) == (id(getattr(one, name)) if hasattr(one, name) else 0)
