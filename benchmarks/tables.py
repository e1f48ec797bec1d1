"""The results of a benchmark as a table in the terminal or in Markdown."""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table


@dataclass
class Results:
    """A table whose first column has the names of the rows."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, *cells: str) -> None:
        """Append a row."""
        assert len(cells) == len(self.columns)
        self.rows.append(cells)

    def show(self) -> None:
        """Print the table."""
        table = Table(*self.columns, title=self.title)
        for column in table.columns[1:]:
            column.justify = "right"
        for row in self.rows:
            table.add_row(*row)
        Console(width=130).print(table, *self.notes, sep="\n")

    def markdown(self) -> str:
        """The table as a section of a document."""
        lines = [self.columns, ("---", *("---:" for _ in self.columns[1:])), *self.rows]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return "\n\n".join([f"## {self.title}", table, *self.notes]) + "\n"
