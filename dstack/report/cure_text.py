"""The cures of each deadlock as text: what each change frees, what it leaves, and the line to change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console

from dstack import words
from dstack.analysis.naming.descriptions import labels_of
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.breaks import Break, shortest_name
from dstack.model.diagnosis import Cure, Diagnosis, Finding, Vertex
from dstack.model.vertex_keys import Key
from dstack.report.finding import advice_rows, status_sentence
from dstack.report.rich_text import Row, SafeText, location, print_rows
from dstack.words import listed, plural

SHOWN_CURES, SHOWN_OTHERS, SHOWN_BREAKS = 4, 3, 2
WIDTH = 100
NO_DEADLOCK = "No deadlock was found, so there is nothing to try."
Vertices = Mapping[Key, Vertex]


def print_cures(console: Console, analysed: AnalysedSnapshot, breaks: Mapping[int, Sequence[Break]]) -> None:
    """Prints the cures of each deadlock, at most 100 columns wide, and how it can be broken as it is."""
    console.width = min(console.width, WIDTH) if console.is_terminal else WIDTH
    diagnosis = analysed.diagnosis
    deadlocks = [(at, one) for at, one in enumerate(diagnosis.findings) if one.kind == "deadlock"]
    if not deadlocks:
        console.print(SafeText(f"{diagnosis.verdict.upper()}  {NO_DEADLOCK}"))
        for finding in diagnosis.findings[:1]:
            print_rows(console, [Row("", "", SafeText(f"{finding.summary}.")), *advice_rows(finding)])
        return
    for number, (at, finding) in enumerate(deadlocks):
        if number:
            console.print()
        _print_finding(console, diagnosis, finding)
        print_rows(console, _break_rows(diagnosis.vertices, breaks.get(at, ())))


def _print_finding(console: Console, diagnosis: Diagnosis, finding: Finding) -> None:
    print_rows(console, [Row("DEADLOCK  ", " " * 10, SafeText(finding.summary, "bold"))])
    print_rows(console, [Row("", "", SafeText(status_sentence(finding)))])
    console.print()
    enough = [cure for cure in finding.cures if cure.frees_all]
    others = sorted((cure for cure in finding.cures if not cure.frees_all), key=lambda cure: not cure.same_way)
    if not enough:
        print_rows(console, advice_rows(finding))
    for number, cure in enumerate(enough[:SHOWN_CURES], 1):
        print_rows(console, _cure_rows(cure, diagnosis.vertices, f"{number}. "))
    if others:
        console.print(SafeText("Not enough:", "bold"))
    for cure in others[:SHOWN_OTHERS]:
        print_rows(console, _cure_rows(cure, diagnosis.vertices, "-  "))


def _cure_rows(cure: Cure, vertices: Vertices, lead: str) -> Iterator[Row]:
    yield Row(lead, " " * len(lead), SafeText(f"{cure.text}: {effect(cure, vertices)}."))
    if cure.file and cure.line and cure.source:
        yield Row("     ", "     ", SafeText(cure.source), location=location(cure.file, cure.line))


def effect(cure: Cure, vertices: Vertices) -> str:
    """``frees all 4``, ``frees 1 of 4; Left.ping remains``, or why it frees nothing."""
    frees = "frees" if cure.is_certain else "probably frees"
    if cure.frees_all:
        too = ", with the other findings resolved" if cure.with_others else ""
        return f"{frees} all {cure.total}{too}" if cure.total > 1 else f"{frees} it{too}"
    if cure.freed:
        left = words.shortly(labels_of(vertices[key] for key in cure.left))
        return f"{frees} {cure.freed} of {cure.total}; {left} {words.word(len(cure.left), 'remains', 'remain')}"
    return f"frees nothing: another {words.shortly(cure.same_way, ' or ')} would wait in the same way"


def _break_rows(vertices: Vertices, breaks: Sequence[Break]) -> Iterator[Row]:
    """How the deadlock can be broken without a change of the program."""
    for number, way in enumerate(breaks[:SHOWN_BREAKS]):
        if number == 0:
            yield Row("", "", SafeText(""))
        command = f"dstack cure --break {shortest_name(way, breaks)}"
        yield Row(" " * 14 if number else "Break it now: ", " " * 14, SafeText(command))
        yield Row(" " * 16, " " * 16, SafeText(f"{break_effect(way, vertices)}."))


def break_effect(way: Break, vertices: Vertices) -> str:
    """``cancels Kitchen.cook, which ends with an error: frees the other 3``."""
    ended = listed(labels_of(vertices[key] for key in way.ended)) or "its calls"
    ends = {
        "cancel": f"cancels {way.name}, which ends with an error",
        "kill": f"kills {way.name}, which ends {ended} with an error",
    }[way.action]
    if way.left:
        return f"{ends}: frees {len(way.freed)}, and {plural(len(way.left), 'wait')} remain"
    return f"{ends}: frees the other {len(way.freed)}" if way.freed else ends
