"""Which frames of the merged stacks match the words of the filter."""

from __future__ import annotations

from dstack.analysis.stacks.outliers import OutlierIndex
from dstack.analysis.stacks.stack_tree import StackBranch


class FrameFilter:
    """Matches frames by their text, and by the ranks, dimensions and labels of their executions, such as ``rank:3``."""

    def __init__(self, root: StackBranch, words: tuple[str, ...]) -> None:
        terms = {execution.key: execution.ranks.terms for execution in root.executions if words}
        known: set[str] = set().union(*terms.values())
        wanted = known.intersection(words)
        self._words = tuple(word for word in words if word not in wanted)
        self._is_by_terms = bool(wanted)
        self._with_terms = OutlierIndex(root, (key for key, own in terms.items() if own >= wanted))

    def matches(self, branch: StackBranch) -> bool:
        """Whether the branch's frame contains all words, and one of its executions has all terms."""
        place = branch.place
        if place is None:
            return False
        text = f"{place.name} {place.function} {place.file}:{place.line}".casefold()
        has_words = all(word in text for word in self._words)
        return has_words and (not self._is_by_terms or bool(self._with_terms.within(branch)))
