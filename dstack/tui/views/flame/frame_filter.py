"""Which frames contain the words of the filter."""

from __future__ import annotations

from dstack.analysis.stacks.app_threads import Execution, PathStep
from dstack.analysis.stacks.peers import OutlierIndex
from dstack.analysis.stacks.stack_tree import PathBranch, StackBranch


class FrameFilter:
    """Matches frames by their text, and by the ranks, dimensions and labels of their executions, such as ``rank:3``."""

    def __init__(self, root: StackBranch, words: tuple[str, ...]) -> None:
        terms = {execution.key: execution.ranks.terms for execution in root.executions if words}
        known: set[str] = set().union(*terms.values())
        wanted = known.intersection(words)
        self._words = tuple(word for word in words if word not in wanted)
        self._is_by_terms = bool(wanted)
        self._with_terms = OutlierIndex(root, (key for key, own in terms.items() if own >= wanted))

    def matches(self, branch: PathBranch[Execution]) -> bool:
        """Whether the branch's frame contains all words, and one of its executions has all terms."""
        has_words = branch.place is not None and has_all(branch.place, self._words)
        return has_words and (not self._is_by_terms or bool(self._with_terms.within(branch)))


def has_all(place: PathStep, words: tuple[str, ...]) -> bool:
    """Whether a frame or group contains all words, in its name or its location."""
    text = f"{place.name} {place.function} {place.file}:{place.line}".casefold()
    return all(word in text for word in words)
