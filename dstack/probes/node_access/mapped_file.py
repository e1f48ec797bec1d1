"""A file that processes of this host have mapped."""

from __future__ import annotations

from dataclasses import dataclass, field

from dstack.probes.node.procfs.proc import Mapping


@dataclass(frozen=True)
class MappedFile:
    """A file by its device and inode, and a path to open it, also for a process in a container."""

    key: tuple[str, str] | None
    path: str = field(compare=False)

    @classmethod
    def of(cls, mapping: Mapping, pid: int) -> MappedFile:
        """The file of a mapping of a process."""
        return cls(mapping.file, f"/proc/{pid}/root{mapping.path}")
