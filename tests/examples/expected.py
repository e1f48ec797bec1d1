"""The expected diagnosis of an example, which the last lines of its docstring state.

    Expected: deadlock                              the verdict
    Expected: hang (finding: infeasible)            and the kind of finding, if it differs from the verdict
    Expected: blocked, incomplete                   and that unread parts could change the verdict
    Later: deadlock, once coroutines are read       the correct verdict, and what is missing for it
    Members: Cashier.order, Kitchen.cook            some members of that finding
    Behind: driver two_actors.py                    some waiters blocked behind it
    Points at: return ray.get(ref)                  a line of code in the findings
    Ends in: Clerk.stamp, 50 directly, 51 in all    its first final blocker, with the number of its waiters
    Failed before: Rank.step                        a failed call in its finding whose result is still held
    Printed: Exception in thread T: KeyError: 1     a line of a log in its finding; a healthy program has none
    Outside: driver in threading.Event.wait         a wait outside of Ray, if there is no finding
    Next step: make Cashier.is_paid async           of the fix, or what to inspect next, in the first 15 lines
    Needs: two nodes                                the cluster, if one node of 2 CPUs and 1 GPU does not suit
    Needs: ray[data,train]                          in a folder `libraries`: the extras of Ray that it imports

Only the verdict is mandatory, and the next step unless the verdict is `running` or `idle`. All lines are in one
paragraph. Next steps are compared without line numbers and line breaks, which change with the length of other texts.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.clusters.dstack_command import Json

HEALTHY = ("running", "idle")
"""The verdicts of programs of which no line of a log may be shown, but for one that is stated."""
ALARMS = ("deadlock", "hang")
"""The verdicts for waiters that can never proceed."""

_EXPECTED = re.compile(r"(\w+)(, incomplete)?(?: \(finding: (\w+)\))?")
_ENDS_IN = re.compile(r"(.+), (\d+) directly, (\d+) in all")
_ROLES = ("members", "blocked_behind", "final_blockers")
_KEYS = (
    "Expected",
    "Later",
    "Members",
    "Behind",
    "Points at",
    "Ends in",
    "Failed before",
    "Printed",
    "Needs",
    "Outside",
    "Next step",
)
_LINE_NUMBER = re.compile(r"(?<=\.py):\d+")
FIRST_LINES = 15
"""The next step has to be within this number of lines of a report."""


@dataclass(frozen=True)
class Expected:
    """The verdict and its finding; values that are None or empty are not compared. ``later`` is a verdict."""

    verdict: str
    finding: str
    incomplete: bool
    members: frozenset[str]
    behind: frozenset[str]
    line: str | None
    blocker: tuple[str, int, int] | None
    failed: str | None
    outside: str | None
    needs: str | None
    later: str | None
    next_step: str | None = None
    printed: str | None = None

    def is_met_by(self, document: Json) -> bool:
        """Whether a document of ``dstack check --json`` has all expected values."""
        return not any(self.differences(document))

    def differences(self, document: Json) -> Iterator[str]:
        """The expected values that a document of ``dstack check --json`` does not have."""
        found = (document["verdict"], document["incomplete"])
        if found != (self.verdict, self.incomplete):
            yield f"verdict and incomplete are {found}"
        findings = [one for one in document["findings"] if one["kind"] == self.finding]
        if self.verdict in ALARMS:
            findings = [one for one in findings if one["confirmed"] or one["assumed"]]  # present in both samples
        if self.outside:
            if self.outside not in outside(document):
                yield f"outside of Ray wait {outside(document)}"
        elif self.verdict != "idle" and not any(self._is_in(one) for one in findings):
            yield f"no finding {self.finding!r} has {set(self.members)} and {set(self.behind)} behind it"
        if self.line and self.line not in lines(document):
            yield f"not pointed at: {self.line}"
        if self.failed and self.failed not in failed_before(document):
            yield f"failed before are {failed_before(document)}"
        if self.printed and self.printed not in printed(document):
            yield f"printed were {printed(document)}"
        if self.verdict in HEALTHY and not self.printed and printed(document):
            yield f"lines of a healthy program are shown: {printed(document)}"
        if self.blocker and self.blocker not in blockers(document)[:1]:
            yield f"final blockers are {blockers(document)}"
        if self.next_step and "report" in document and not self.shows_next_step(document["report"]):
            yield f"not in the first {FIRST_LINES} lines: {self.next_step}, but {document['report']}"

    def shows_next_step(self, report: str) -> bool:
        """Whether the first lines of a text report have the next step."""
        return self.next_step is not None and self.next_step in first_lines(report)

    def is_denied_by(self, document: Json) -> bool:
        """Whether a document is a false alarm: it reports a deadlock or hang, and the example has none.

        Ray may report a failed task a second late, which changes one alarm to the other.
        """
        return document["verdict"] in ALARMS and self.verdict not in ALARMS and document["verdict"] != self.later

    def _is_in(self, finding: Json) -> bool:
        return self.members <= _executions(finding["members"]) and self.behind <= _executions(finding["blocked_behind"])


def expected_of(path: Path) -> Expected:
    """Parse the docstring of an example; raises :class:`AssertionError` if it is malformed."""
    last = (ast.get_docstring(ast.parse(path.read_text())) or "").rpartition("\n\n")[2]
    pairs = [line.partition(": ") for line in last.splitlines()]
    stated = {key: value for key, _, value in pairs}
    assert [key for key in stated if key in _KEYS] == [key for key, _, _ in pairs], f"{path} ends with {last!r}"
    match = _EXPECTED.fullmatch(stated.get("Expected", ""))
    assert match, f"{path} has no valid line 'Expected': {last!r}"
    ends_in = _ENDS_IN.fullmatch(stated.get("Ends in", ""))
    return Expected(
        verdict=match[1],
        finding=match[3] or match[1],
        incomplete=match[2] is not None,
        members=_names(stated.get("Members")),
        behind=_names(stated.get("Behind")),
        line=stated.get("Points at"),
        blocker=(ends_in[1], int(ends_in[2]), int(ends_in[3])) if ends_in else None,
        failed=stated.get("Failed before"),
        outside=stated.get("Outside"),
        needs=stated.get("Needs"),
        later=re.split(r"\W", stated["Later"])[0] if "Later" in stated else None,
        next_step=stated.get("Next step"),
        printed=stated.get("Printed"),
    )


def first_lines(report: str) -> str:
    """The first 15 lines of a text report as one, without source line numbers and the frame of a cycle."""
    shown = " ".join(line.lstrip("┌▶│└─ ") for line in report.splitlines()[:FIRST_LINES])
    return _LINE_NUMBER.sub("", " ".join(shown.split()))


def lines(document: Json) -> set[str]:
    """All source lines in the findings."""
    found = document["findings"]
    shown = (one for finding in found for role in _ROLES for one in finding[role])
    return {one["source"] for one in shown if one["source"]}


def outside(document: Json) -> set[str]:
    """The waits outside of Ray with their calls."""
    return {f"{one['kind']} in {one['call']}" for one in document["outside_ray"]}


def failed_before(document: Json) -> set[str]:
    """The failed calls in the findings whose results are still held."""
    return {one["name"] for finding in document["findings"] for one in finding["failed_before"] if one["is_held"]}


def printed(document: Json) -> set[str]:
    """The lines of logs in the findings."""
    return {one["text"] for finding in document["findings"] for one in finding["last_words"]}


def blockers(document: Json) -> list[tuple[str, int, int]]:
    """The final blockers of all findings with the numbers of their direct and of all waiters."""
    return [
        (one["execution"], one["waiters_direct"], one["waiters_total"])
        for finding in document["findings"]
        for one in finding["final_blockers"]
    ]


def _executions(members: list[Json]) -> set[str]:
    return {member["execution"] for member in members}


def _names(value: str | None) -> frozenset[str]:
    return frozenset(value.split(", ")) if value else frozenset()
