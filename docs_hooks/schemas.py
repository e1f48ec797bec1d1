"""The page about the JSON that dstack prints and saves, and the JSON Schemas themselves."""

from __future__ import annotations

import inspect
import json
from typing import Any

from dstack.files.snapshot_file import snapshot_schema
from dstack.model.snapshot import VERSION
from dstack.report.check_schema import check_schema
from dstack.report.graph_files import graph_schema
from dstack.report.memory_text import memory_schema
from dstack.report.prediction_text import prediction_schema
from dstack.report.stacks_files import stacks_schema

Json = dict[str, Any]
_PAGE = """\
# JSON Schema

Generated from the code when this site is built. A test validates the JSON of every recorded snapshot.

- `dstack check --json`, `dstack show --json`, `dstack snapshot --json` and the input of `dstack watch --on-finding`:
  `dstack.check/2`, [JSON Schema](schema/check-2.json).
- `dstack stacks --json`: `dstack.stacks/1`, [JSON Schema](schema/stacks-1.json).
- `dstack memory --json`: `dstack.memory/1`, [JSON Schema](schema/memory-1.json).
- `dstack predict --json`: `dstack.predict/1`, [JSON Schema](schema/predict-1.json).
- `dstack graph --format json`: `dstack.graph/1`, [JSON Schema](schema/graph-1.json).
- Snapshot files, as `dstack snapshot -o` writes them: `dstack.snapshot`, version {version},
  [JSON Schema](schema/snapshot-2.json).

Fields are only added within a major version, so a reader must ignore fields that it does not know. Texts such as
`summary`, the text of `advice`, `explanation` and `reason` are for people: their wording may change in any version."""


def pages() -> dict[str, str]:
    """The page, and a file for each schema."""
    check, stacks, graph, memory = check_schema(), stacks_schema(), graph_schema(), memory_schema()
    predict = prediction_schema()
    snapshot = snapshot_schema()
    text = "\n\n".join(
        [
            _PAGE.format(version=".".join(map(str, VERSION))),
            "## The check document",
            *_types(check),
            "## The stacks document",
            *_types(stacks),
            "## The memory document",
            *_types(memory),
            "## The prediction document",
            *_types(predict),
            "## The graph document",
            *_types(graph),
            "## The snapshot file",
            *_types({"$defs": {name: one for name, one in snapshot["$defs"].items() if name not in check["$defs"]}}),
        ]
    )
    files = {
        "check-2": check,
        "stacks-1": stacks,
        "memory-1": memory,
        "predict-1": predict,
        "graph-1": graph,
        "snapshot-2": snapshot,
    }
    return {"schema.md": text, **{f"schema/{name}.json": json.dumps(one, indent=2) for name, one in files.items()}}


def _types(schema: Json) -> list[str]:
    return [_type(name, one) for name, one in schema["$defs"].items()]


def _type(name: str, one: Json) -> str:
    required = one.get("required", ())
    rows = [
        f"| `{field}` | {_words(kind)} | {'yes' if field in required else ''} | {kind.get('description', '')} |"
        for field, kind in one.get("properties", {}).items()
    ]
    head = ["| field | type | required | meaning |", "|---|---|---|---|"]
    description = inspect.cleandoc(one.get("description", ""))
    return "\n".join([f"### {_title(name)} {{ #{name} }}", "", description, "", *head, *rows])


def _title(name: str) -> str:
    return name.removeprefix("Document") or name


def _words(kind: Json) -> str:
    """The type of a field, with a link to that of an object."""
    if "$ref" in kind:
        name = kind["$ref"].rpartition("/")[2]
        return f"[{_title(name)}](#{name})"
    if "anyOf" in kind:
        return " or ".join(_words(one) for one in kind["anyOf"])
    if "enum" in kind or "const" in kind:
        return ", ".join(f"`{value}`" for value in kind.get("enum") or [kind["const"]])
    if kind.get("type") == "array":
        return f"list of {_items(kind)}"
    if kind.get("type") == "object":
        return f"object of {_words(kind['additionalProperties'])} by name"
    return str(kind.get("type", "any"))


def _items(kind: Json) -> str:
    items = kind.get("items")
    return _words(items) if items else " and ".join(_words(one) for one in kind.get("prefixItems", ())) or "any"
