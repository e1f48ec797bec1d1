"""Match label selectors with the labels of nodes."""

from __future__ import annotations

import re
from collections.abc import Mapping

_SET = re.compile(r"in\((.*)\)")


def match(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Whether a node's labels satisfy all of ``value``, ``!value``, ``in(a,b)`` and ``!in(a,b)``, as Ray 2.60 has them.

    A node without the label satisfies conditions with ``!``.
    """
    return all(_matches(condition, labels.get(key)) for key, condition in selector.items())


def _matches(condition: str, value: str | None) -> bool:
    wanted = condition.removeprefix("!")
    among = _SET.fullmatch(wanted)
    values = [one.strip() for one in among[1].split(",")] if among else [wanted]
    return (value in values) != condition.startswith("!")
