"""Recordings and profiles as files, in the format that a suffix selects; for the commands and :mod:`dstack.api`."""

from __future__ import annotations

import gzip

from dstack.errors import UsageError
from dstack.files.document_file import to_json
from dstack.files.file_output import STDOUT
from dstack.model.profile import Profile, Sampled

FORMATS = (".folded", ".txt", ".speedscope.json", ".html", ".json", ".json.gz")
"""The suffixes of files, each a format; the longest one that fits counts."""


def format_of(output: str) -> str:
    """The format of a file by its suffix. Raises :class:`UsageError`."""
    if output == STDOUT:
        return ".folded"
    name = output.lower()
    found = [suffix for suffix in FORMATS if name.endswith(suffix)]
    if not found:
        raise UsageError(f"{output} has no suffix of a known format.", f"Use a name that ends in {', '.join(FORMATS)}.")
    return max(found, key=len)


def sampled_file(sampled: Sampled, suffix: str) -> bytes:
    """A recording or a profile in a format."""
    if suffix in (".json", ".json.gz"):
        text = to_json(sampled)
        return gzip.compress(text, compresslevel=6, mtime=0) if suffix == ".json.gz" else text
    if suffix == ".html":
        from dstack.report.page.pages import sampled_page

        return sampled_page(sampled)
    from dstack.analysis.stacks.profiles import profile_stacks
    from dstack.analysis.stacks.weighted_stacks import recorded_stacks
    from dstack.report.stacks_files import folded, speedscope

    stacks = profile_stacks(sampled) if isinstance(sampled, Profile) else recorded_stacks(sampled, unfolded=True)
    return speedscope(stacks) if suffix == ".speedscope.json" else folded(stacks)
