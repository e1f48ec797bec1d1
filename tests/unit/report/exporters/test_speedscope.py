"""Files for speedscope meet its JSON Schema, and have all weights."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
from hypothesis import given

from dstack.analysis.stacks.weighted_stacks import WeightedStacks
from dstack.report.exporters.speedscope import speedscope
from dstack.version import __version__
from dstack.words import UNSEEN
from tests.clusters.dstack_command import Json
from tests.fuzzing.effort import examples
from tests.unit.report.exporters.stacks import STACKS, TWO_RANKS

SCHEMA = jsonschema.Draft7Validator(
    json.loads((Path(__file__).parent / "formats" / "speedscope.schema.json").read_text())
)


def document_of(stacks: WeightedStacks) -> Json:
    document: Json = json.loads(speedscope(stacks))
    SCHEMA.validate(document)
    return document


def stacks_in(document: Json, profile: Json) -> list[list[str]]:
    names = [frame["name"] for frame in document["shared"]["frames"]]
    return [[names[position] for position in sample] for sample in profile["samples"]]


def test_each_group_path_is_a_profile_after_one_of_all() -> None:
    document = document_of(TWO_RANKS)

    assert [profile["name"] for profile in document["profiles"]] == [
        "cluster",
        "actor Trainer / rank 0",
        "actor Trainer / rank 1",
    ]
    assert stacks_in(document, document["profiles"][0]) == [
        ["actor Trainer", "rank 0", "train", "ray.get"],
        ["actor Trainer", "rank 1", "train"],
    ]
    assert stacks_in(document, document["profiles"][1]) == [["train", "ray.get"]]
    assert document["shared"]["frames"][2] == {"name": "train", "file": "app/train.py", "line": 12}
    assert document["exporter"] == f"dstack {__version__}"


def test_one_group_is_one_profile() -> None:
    document = document_of(WeightedStacks("cluster", "microseconds", TWO_RANKS.stacks[:1]))

    assert [profile["name"] for profile in document["profiles"]] == ["actor Trainer / rank 0"]
    assert document["profiles"][0]["unit"] == "microseconds"


def test_without_stacks_there_is_an_empty_profile() -> None:
    assert [profile["samples"] for profile in document_of(WeightedStacks("none", "samples", ()))["profiles"]] == [[]]


@examples(200)
@given(STACKS)
def test_weights_are_conserved_and_hostile_names_are_harmless(stacks: WeightedStacks) -> None:
    document = document_of(stacks)

    everything, *groups = document["profiles"]
    for profile in document["profiles"]:
        assert len(profile["samples"]) == len(profile["weights"])
        assert profile["endValue"] == sum(profile["weights"])
    assert everything["endValue"] == stacks.weight
    assert sum(profile["endValue"] for profile in groups or [everything]) == stacks.weight
    frames = document["shared"]["frames"]
    assert all(
        0 <= position < len(frames) for one in document["profiles"] for each in one["samples"] for position in each
    )
    names = [profile["name"] for profile in document["profiles"]] + [frame["name"] for frame in frames]
    assert not any(UNSEEN.search(name) for name in names)
