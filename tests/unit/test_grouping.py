from __future__ import annotations

from dstack.words import grouped


def test_keys_and_values_keep_their_order() -> None:
    found = grouped((len(word), word) for word in ("three", "two", "seven", "one"))

    assert list(found.items()) == [(5, ["three", "seven"]), (3, ["two", "one"])]
    assert found.get(4, ()) == ()
