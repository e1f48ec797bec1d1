"""Names of vertices in sentences."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from dstack.analysis.naming.names import nodes, ranks_in_words
from dstack.model.snapshot import Node


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ((), ""),
        ((3,), "rank 3"),
        ((0, 1), "ranks 0-1"),
        ((5, 0, 2, 1, 1), "ranks 0-2, 5"),
        (range(1024), "ranks 0-1023"),
        (range(0, 64, 2), "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 24 more"),
    ],
)
def test_consecutive_ranks_are_one_range_and_long_lists_are_cut(ranks: Iterable[int], words: str) -> None:
    assert ranks_in_words(ranks) == words


def test_names_of_nodes_with_one_address_have_their_ids() -> None:
    known = [
        Node(node_id=f"{letter * 56}", ip=ip) for letter, ip in (("a", "10.0.0.1"), ("b", "10.0.0.1"), ("c", "::1"))
    ]

    assert list(nodes(known).values()) == ["node 10.0.0.1 (aaaaaaaa)", "node 10.0.0.1 (bbbbbbbb)", "node ::1"]
