"""What dstack says of a rank program at rest, compared with what the program and torch know themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from dstack.model.snapshot import Snapshot
from dstack.observed.ledgers import Collective
from dstack.observed.processes import Process
from tests.rank_programs.generator import SLOW, Program
from tests.rank_programs.library_programs import LibraryProgram

Json = dict[str, Any]
TYPES = {"Float": "float32", "Double": "float64", "Int": "int32", "Long": "int64", "Byte": "uint8"}
TOP_LINES = 10
FILE = "program.py"


@dataclass(frozen=True)
class Reading:
    """A program at rest: the ranks' own files, torch's records in each rank, and what dstack read and says."""

    program: Program | LibraryProgram
    notes: list[list[Json]]
    records: list[list[Json] | None]
    snapshot: Snapshot
    document: Json
    exit_code: int
    text: str

    @property
    def ends(self) -> list[str]:
        """How each rank's method has ended, empty where it has not."""
        return [next((note["end"] for note in notes if "end" in note), "") for notes in self.notes]

    @property
    def state(self) -> str:
        """What the program does: a method that torch has failed may have freed or failed others."""
        if self.program.mutation in SLOW:
            return "slow"
        if None in self.records or any(
            end and end != "returned" and not end.startswith("ValueError: a bad batch") for end in self.ends
        ):
            return "error"
        return "ended" if all(self.ends) else "hung"


def errors(reading: Reading) -> list[str]:
    """Everything that is wrong, in one sentence each."""
    found = list(_ledger_errors(reading))
    if reading.state == "error":
        return found
    found += _exit_errors(reading)
    if reading.state == "hung" and reading.program.counted and not differences(reading):
        found.append("no difference")
    found += _difference_errors(reading)
    found += _text_errors(reading) if reading.state == "hung" else ()
    return found


def differences(reading: Reading) -> list[Json]:
    """The differences that the findings name."""
    return [one["difference"] for one in reading.document["findings"] if one.get("difference")]


def _exit_errors(reading: Reading) -> Iterator[str]:
    expected = int(reading.state == "hung")
    if reading.exit_code != expected:
        yield f"exit code {reading.exit_code} and {reading.document['verdict']}, but it is {reading.state}"


def _difference_errors(reading: Reading) -> Iterator[str]:
    """The mutated rank differs, and from the number on at which its calls do, if any rank has come so far."""
    program = reading.program
    most = {group: max(_count(notes, group) for notes in reading.notes) for group in program.differences()}
    numbers = {group: number for group, (number, _) in program.differences().items() if number <= most[group]}
    for one in differences(reading):
        group = "world" if one["group"] == "default_pg" else one["group"]
        if one["ranks"] != [program.mutant]:
            yield f"ranks {one['ranks']} differ, not {program.mutant}: {one['text']}"
        elif numbers and numbers.get(group) != one["number"]:
            yield f"number {one['number']} of {group} differs, not {numbers}: {one['text']}"


def _text_errors(reading: Reading) -> Iterator[str]:
    """The first lines name the mutated rank, and one of its lines or of those that it lacks."""
    mutant, top = reading.program.mutant, reading.text.splitlines()[:TOP_LINES]
    if mutant not in {rank for line in top for rank in _ranks_in(line)}:
        yield f"the first lines do not name rank {mutant}"
    lines = reading.program.changed_lines() | {note["line"] for note in reading.notes[mutant][-3:] if "line" in note}
    for group in {note["group"] for notes in reading.notes for note in notes if "group" in note}:
        lines.update(reading.program.calls(mutant, group)[_count(reading.notes[mutant], group) :][:1])
    if not lines & {int(number) for line in top for number in re.findall(rf"{FILE}:(\d+)", line)}:
        yield f"the first lines have no line of rank {mutant}, such as {sorted(lines)}"


def _ranks_in(line: str) -> Iterator[int]:
    """The ranks that a line names, as ``rank 3`` or ``ranks 0-2, 4 and 5``."""
    for text in re.findall(r"\branks? ([\d, and-]*\d)", line):
        for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
            yield from range(int(first), int(last or first) + 1)


def _count(notes: list[Json], group: str) -> int:
    return sum(note.get("group") == group for note in notes)


def _ledger_errors(reading: Reading) -> Iterator[str]:
    """A ledger of each sample equals the notes of the program and the records of torch."""
    for number, sample in enumerate(reading.snapshot.samples):
        found = [worker.process for worker in sample.workers if worker.process]
        processes = {one.rank: one for one in found if one.rank is not None and one.ledgers}
        for rank, (notes, records) in enumerate(zip(reading.notes, reading.records, strict=True)):
            if records is None:
                continue
            if rank not in processes:
                yield from [f"sample {number}: no process of rank {rank}"] if number == 0 else []
                continue
            for group in sorted({record["group"] for record in records}):
                own = [record for record in records if record["group"] == group]
                if error := _ledger_error(reading.snapshot, processes[rank], group, own, notes):
                    yield f"sample {number}, rank {rank}, {group}: {error}"


def _ledger_error(snapshot: Snapshot, process: Process, group: str, records: list[Json], notes: list[Json]) -> str:
    name = "default_pg" if group == "world" else group
    found = [one for one in process.ledgers if process.process_groups[one.group].description == name]
    if not found:
        return f"no ledger, but {len(records)} records" if records else ""
    entered = max((record["number"] for record in records), default=0)
    lines = [note["line"] for note in notes if note.get("group") == group]
    counts = {"ledger": found[0].entered, "recorded": found[0].recorded, "torch": entered}
    counts |= {"program": len(lines)} if lines else {}
    if len(found) > 1 or len(set(counts.values())) > 1:
        return f"{len(found)} ledgers, {counts}"
    expected = [_of_record(record) | ({"line": line} if line else {}) for record, line in zip_longest(records, lines)]
    calls = [_of_collective(snapshot, process.collectives[at], with_line=bool(lines)) for at in found[0].calls]
    pairs = [(a, b) for a, b in zip(calls, expected, strict=False) if a != b]
    is_right = len(calls) == len(expected) and not pairs
    return "" if is_right else f"{len(calls)} calls, torch has {len(expected)}; first unlike: {pairs[:1]}"


def _of_record(record: Json) -> Json:
    types = [TYPES.get(name, name) for name in record["types"]]
    return {"operation": record["operation"], "sizes": record["sizes"], "types": types}


def _of_collective(snapshot: Snapshot, collective: Collective, *, with_line: bool) -> Json:
    frames = [snapshot.frames[at] for at in snapshot.stacks[collective.stack]]
    lines = [frame.line for frame in frames if frame.file.endswith(FILE)]
    sizes = [list(one) for one in collective.sizes]
    found = {"operation": collective.operation, "sizes": sizes, "types": list(collective.types)}
    return {**found, "line": lines[0] if lines else 0} if with_line else found
