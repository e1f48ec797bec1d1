"""A profile that grows with its parts."""

from __future__ import annotations

from unittest.mock import patch

from msgspec.structs import replace

from dstack.files.document_file import to_json
from dstack.files.sampled_file import PROFILES
from dstack.model import profile
from dstack.model.profile import Endpoint, ExecutedCalls, JoinedProfile, Traffic
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


LOAD, STEP, OTHER = (
    Endpoint("actor", "Loader", "load"),
    Endpoint("actor", "Trainer", "step"),
    Endpoint("driver", "a.py"),
)


def test_parts_add_their_objects_and_calls() -> None:
    joined = JoinedProfile(profile_of([]))
    part = replace(profile_of([]), traffic=(Traffic(LOAD, STEP, 1, 10),), executed=(ExecutedCalls(LOAD, 3),))
    joined.add(part)
    joined.add(replace(part, traffic=(*part.traffic, Traffic(LOAD, OTHER, 2, 50)), executed=(ExecutedCalls(STEP, 1),)))
    whole = joined.whole(1.0)

    assert whole.traffic == (Traffic(LOAD, OTHER, 2, 50), Traffic(LOAD, STEP, 2, 20))
    assert whole.executed == (ExecutedCalls(LOAD, 3), ExecutedCalls(STEP, 1))
    assert PROFILES.loads(to_json(whole)) == whole


def test_pairs_beyond_the_limit_are_left_out() -> None:
    joined = JoinedProfile(profile_of([]))
    with patch.object(profile, "MAX_EDGES", 1):
        joined.add_traffic([Traffic(LOAD, STEP, 1, 10), Traffic(LOAD, OTHER, 1, 90)], [ExecutedCalls(LOAD, 1)])
        joined.add_traffic([Traffic(LOAD, STEP, 1, 10)], [ExecutedCalls(STEP, 9), ExecutedCalls(LOAD, 1)])
    whole = joined.whole(1.0)

    assert whole.traffic == (Traffic(LOAD, STEP, 2, 20),)
    assert whole.executed == (ExecutedCalls(LOAD, 2),)
