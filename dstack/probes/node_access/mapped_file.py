"""A file that processes of this host have mapped, wherever each of them has it."""

from __future__ import annotations

from dataclasses import dataclass, field

from dstack.probes.node.procfs.proc import Mapping


@dataclass(frozen=True)
class MappedFile:
    """A file, known by its device and inode, and where it can be opened: also that of a process in a container."""

    key: tuple[str, str] | None
    path: str = field(compare=False)

    @classmethod
    def of(cls, mapping: Mapping, pid: int) -> MappedFile:
        """The file of which a process has mapped something."""
        return cls(mapping.file, f"/proc/{pid}/root{mapping.path}")
