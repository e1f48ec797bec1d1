"""The output of ``dstack check --json`` meets its JSON Schema, which has every field."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from dstack.files.snapshot_file import dumps, load, snapshot_schema
from dstack.model.snapshot import Snapshot
from dstack.report.check_schema import check_schema
from tests.clusters.dstack_command import Json
from tests.examples.recorded import document_of
from tests.paths import RECORDED_CLUSTERS

FILES = sorted(RECORDED_CLUSTERS.iterdir())


def closed(schema: Json) -> Json:
    """The schema without additional fields."""
    for one in schema["$defs"].values():
        if one.get("type") == "object":
            one.setdefault("additionalProperties", False)
    return schema


CHECK = jsonschema.Draft202012Validator(closed(check_schema()))
SNAPSHOT = jsonschema.Draft202012Validator(closed(snapshot_schema()))


def assert_valid(snapshot: Snapshot, document: Json) -> None:
    """The document of a check and the file of the snapshot meet their schemas."""
    CHECK.validate(document)
    SNAPSHOT.validate(json.loads(dumps(snapshot)))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name.partition(".json")[0])
def test_documents_of_recorded_clusters_are_valid(file: Path) -> None:
    assert_valid(load(file), document_of(file))


def test_a_document_with_an_unknown_verdict_is_not_valid() -> None:
    document = document_of(FILES[0])

    assert CHECK.is_valid(document)
    assert not CHECK.is_valid({**document, "verdict": "fine"})
    assert not CHECK.is_valid({**document, "mood": "good"})
    assert not CHECK.is_valid({key: value for key, value in document.items() if key != "coverage"})
