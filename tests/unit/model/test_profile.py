"""A profile that grows with its parts."""

from __future__ import annotations

from msgspec.structs import replace

from dstack.files.document_file import to_json
from dstack.files.sampled_file import PROFILES
from dstack.model.profile import JoinedProfile
from tests.unit.analysis.stacks.made_profiles import ON_CPU, in_turn, line, profile_of


def test_parts_add_their_times_and_their_sources() -> None:
    part = replace(profile_of(in_turn((1, (line(5), ON_CPU)))), sources={"a.py": {1: "x"}})
    joined = JoinedProfile(profile_of([]))
    joined.add(part)
    joined.add(replace(part, sources={"a.py": {2: "y"}, "b.py": {1: "z"}}))
    whole = joined.whole(2.0)

    assert whole.sources == {"a.py": {1: "x", 2: "y"}, "b.py": {1: "z"}}
    assert [one.weight_us for one in whole.shares] == [1_000_000, 1_000_000]
    assert PROFILES.loads(to_json(whole)) == whole
