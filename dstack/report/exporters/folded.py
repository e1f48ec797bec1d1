"""Folded stacks: one line for each stack, as flamegraph.pl, inferno and speedscope read them."""

from __future__ import annotations

import re
from collections import Counter

from dstack.analysis.stacks.app_threads import PathStep
from dstack.analysis.stacks.weighted_stacks import WeightedStack, WeightedStacks
from dstack.words import visible

SEPARATOR = ";"
SELF = "(self)"
"""Ends a stack whose last name would be read as a second number; readers take two numbers for a comparison."""
_ENDS_IN_NUMBER = re.compile(r"(^|\s)[\d.]+\s*$")


def folded(stacks: WeightedStacks) -> bytes:
    """``group;group;outermost (file:line);innermost (file:line) WEIGHT``, sorted; equal lines are added up."""
    weights: Counter[str] = Counter()
    for stack in stacks.stacks:
        weights[_line(stack)] += stack.weight
    lines = (f"{line} {weight}\n" for line, weight in sorted(weights.items()) if weight > 0)
    return "".join(lines).encode()


def _line(stack: WeightedStack) -> str:
    names = [_escaped(group) for group in stack.groups] + [_escaped(_frame(step)) for step in stack.frames]
    if not names or _ENDS_IN_NUMBER.search(names[-1]):
        names.append(SELF)
    return SEPARATOR.join(names)


def _frame(step: PathStep) -> str:
    """``function (file:line)`` as in py-spy's raw format; a step without a file is only its name."""
    if not step.file:
        return step.name
    return f"{step.name} ({step.file}:{step.line})" if step.line else f"{step.name} ({step.file})"


def _escaped(name: str) -> str:
    """The name in one piece: without separators, line ends and control characters, and not empty."""
    return visible(name).replace(SEPARATOR, r"\x3b").strip() or "(no name)"
