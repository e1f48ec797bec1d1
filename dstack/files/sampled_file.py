"""Files of recordings and profiles: one JSON document, gzipped where the name ends in ``.json.gz``.

Files may come from strangers, so all input is validated like that of :mod:`dstack.files.snapshot_file`.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from dstack.files.document_file import DocumentFormat
from dstack.model import profile, recording
from dstack.model.profile import Profile
from dstack.model.recording import Recording

MAX_FRAMES = 20_000_000
"""Maximum number of frames in the stacks of all counts, or of steps in the paths of all shares."""
MAX_WEIGHT = 2**53
"""Maximum sum of samples, or of microseconds, so that sums are exact in every reader of JSON."""


def _problems_of_recording(found: Recording) -> Iterator[str]:
    for i, stack in enumerate(found.stacks):
        for j, frame in enumerate(stack):
            if frame >= len(found.frames):
                yield f"no such frame - at `$.stacks[{i}][{j}]`"
    for i, count in enumerate(found.counts):
        if count.thread >= len(found.threads):
            yield f"no such thread - at `$.counts[{i}][0]`"
        if count.stack >= len(found.stacks):
            yield f"no such stack - at `$.counts[{i}][1]`"


def _limits_of_recording(found: Recording) -> Iterator[tuple[str, int, int]]:
    yield "frames", sum(len(found.stacks[count.stack]) for count in found.counts), MAX_FRAMES
    yield "samples", sum(count.samples for count in found.counts), MAX_WEIGHT


def _problems_of_profile(found: Profile) -> Iterator[str]:
    for i, path in enumerate(found.paths):
        for j, step in enumerate(path):
            if step >= len(found.steps):
                yield f"no such step - at `$.paths[{i}][{j}]`"
    for i, share in enumerate(found.shares):
        if share.root >= len(found.roots):
            yield f"no such root - at `$.shares[{i}][0]`"
        if share.path >= len(found.paths):
            yield f"no such path - at `$.shares[{i}][1]`"


def _limits_of_profile(found: Profile) -> Iterator[tuple[str, int, int]]:
    yield "steps", sum(len(found.paths[share.path]) for share in found.shares), MAX_FRAMES
    yield "microseconds", sum(share.weight_us for share in found.shares), MAX_WEIGHT


RECORDINGS = DocumentFormat(
    "recording",
    recording.SCHEMA,
    recording.VERSION,
    msgspec.json.Decoder(Recording),
    "dstack record",
    _problems_of_recording,
    _limits_of_recording,
)
PROFILES = DocumentFormat(
    "profile",
    profile.SCHEMA,
    profile.VERSION,
    msgspec.json.Decoder(Profile),
    "dstack profile",
    _problems_of_profile,
    _limits_of_profile,
)
