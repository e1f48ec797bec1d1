"""Documents are cut to a length, keep their shape, and name what was left out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstack.cli.assistant import LONGEST_TEXT, part, shortened

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=60) | st.dictionaries(st.text("abc", min_size=1), inner, max_size=4),
    max_leaves=200,
)


def test_a_short_document_is_whole() -> None:
    document = {"findings": [{"members": [1, 2, 3]}], "verdict": "idle"}

    assert shortened(document, 1_000) == (document, {})


def test_long_lists_are_cut_and_counted_by_their_path() -> None:
    document = {"findings": [{"members": list(range(1_000))}], "verdict": "deadlock"}

    data, left_out = shortened(document, 400)

    shown = data["findings"][0]["members"]
    assert shown == list(range(len(shown)))
    assert left_out == {"findings.0.members": 1_000 - len(shown)}
    assert part(document, "findings.0.members")[len(shown) :] == list(range(len(shown), 1_000))


def test_a_long_text_is_cut() -> None:
    data, left_out = shortened({"source": "x" * 10_000}, 5_000)

    assert data == {"source": "x" * LONGEST_TEXT + "…"}
    assert left_out == {}


@given(VALUES, st.integers(min_value=20, max_value=2_000))
def test_what_is_shown_and_what_is_left_out_are_the_document(document: Any, most: int) -> None:
    data, left_out = shortened(document, most)

    assert restored(data, document, "", left_out) == document
    assert len(json.dumps(shortened(document, 10**9)[0])) > most or len(json.dumps(data)) <= most


def restored(data: Any, document: Any, path: str, left_out: dict[str, int]) -> Any:
    """The document, from its cut version and the parts that are named as left out."""
    below = f"{path}." if path else ""
    if isinstance(data, dict):
        return {key: restored(one, document, f"{below}{key}", left_out) for key, one in data.items()}
    if isinstance(data, list):
        shown = [restored(one, document, f"{below}{at}", left_out) for at, one in enumerate(data)]
        whole = part(document, path) if path else document
        assert left_out.get(path, 0) == len(whole) - len(shown)
        return shown + whole[len(shown) :]
    return data


@pytest.mark.parametrize("path", ["x", "findings.7", "findings.x", "verdict.a", "findings.0.members.0.0"])
def test_a_path_to_nothing_is_an_error(path: str) -> None:
    with pytest.raises(KeyError):
        part({"findings": [{"members": [1]}], "verdict": "idle"}, path)
