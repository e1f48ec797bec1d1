"""Makes a cluster of any size of the recorded one by repeating its nodes P and Q with other ids and addresses."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

from dstack.probes.connection import ray_stubs

FILE = Path(__file__).with_name("recorded.json.gz")
ONCE, REPEATED = "HRS", "PQ"
_ID = re.compile(r"\b[0-9a-f]{32,56}\b")
_NIL = "f" * 8
_GCS = "/ray.rpc."
REPLIES = {
    "GetAllNodeInfo": "node_info_list",
    "GetAllWorkerInfo": "worker_table_data",
    "GetAllActorInfo": "actor_table_data",
    "GetAllTotalResources": "resources_list",
    "GetAllAvailableResources": "resources_list",
    "GetTaskEvents": "events_by_task",
}
"""The field of each table that has one row for each thing."""


class Copies:
    """The recorded cluster with ``pairs`` of the nodes P and Q."""

    def __init__(self, pairs: int) -> None:
        self.pairs = pairs
        recorded = json.loads(gzip.decompress(FILE.read_bytes()))
        self.version: str = recorded["version"]
        self._letters: dict[str, str] = recorded["letters"]
        self._ip: str = recorded["ip"]
        self._answers: dict[str, list[Any]] = recorded["answers"]
        self._tables = {name: base64.b64decode(data) for name, data in recorded["tables"].items()}
        self._stats = {worker: base64.b64decode(data) for worker, data in recorded["core_workers"].items()}
        self.took_s: dict[str, list[float]] = recorded["took_s"]
        self._tasks = self._letters_of_tasks()

    @cached_property
    def nodes(self) -> dict[str, tuple[str, int]]:
        """Letter and number of each node, by its id."""
        of_letter = {self._letters[row.node_id.hex()]: row.node_id.hex() for row in self._rows("GetAllNodeInfo")}
        once = {of_letter[letter]: (letter, 0) for letter in ONCE}
        repeated = ((letter, number) for number in range(self.pairs) for letter in REPEATED)
        return once | {self.copied(of_letter[letter], number): (letter, number) for letter, number in repeated}

    def address(self, node_id: str) -> str:
        """The made-up address of a node on this host."""
        index = list(self.nodes).index(node_id) if node_id not in self._indices else self._indices[node_id]
        return f"127.1.{index // 250}.{1 + index % 250}"

    @cached_property
    def _indices(self) -> dict[str, int]:
        return {node_id: index for index, node_id in enumerate(self.nodes)}

    def answer(self, node_id: str, sample: int) -> str:
        """The answer of a node's probe to the request of a sample, as JSON."""
        letter, number = self.nodes[node_id]
        answer = self._answers[letter][sample]
        if letter not in REPEATED:
            return json.dumps(self._expanded(answer), separators=(",", ":"))
        return self.copied_text(json.dumps(answer, separators=(",", ":")), number)

    def stats(self, node_id: str) -> dict[str, bytes]:
        """The replies of a node's core workers, by worker id."""
        letter, number = self.nodes[node_id]
        found = {}
        for worker_id, data in self._stats.items():
            if self._letters[worker_id] == letter:
                reply = ray_stubs.core_worker_pb2.GetCoreWorkerStatsReply.FromString(data)
                self._copy_into(reply, number, "")
                found[self.copied(worker_id, number)] = reply.SerializeToString()
        return found

    def tables(self, ports: dict[str, int]) -> dict[str, bytes]:
        """The replies of the GCS by the names of their methods; ``ports`` are those of the nodes, by id."""
        found = dict(self._tables)
        for name in found:
            method = name.rpartition("/")[2]
            if method in REPLIES and method != "GetTaskEvents":
                reply = self._reply(name)
                rows = list(self.rows(method, ports))
                del getattr(reply, REPLIES[method])[:]
                getattr(reply, REPLIES[method]).extend(rows)
                found[name] = reply.SerializeToString()
        return found

    def rows(self, method: str, ports: dict[str, int]) -> Iterator[Any]:
        """The rows of a table, with those of all copies."""
        for row in self._rows(method):
            letter = self._letter_of_row(row)
            for number in range(self.pairs if letter in REPEATED else 1):
                copy = type(row)()
                copy.CopyFrom(row)
                node_id = self._node_id(letter, number) if letter else ""
                self._copy_into(copy, number, self.address(node_id) if node_id else self._ip)
                self._set_ports(copy, ports.get(node_id, 0))
                yield copy

    def copied(self, id: str, number: int) -> str:
        """The id in that copy of the pair; an id of something else is unchanged."""
        if id in self._letters:
            return _changed(id, 0, number) if self._letters[id] in REPEATED else id
        if len(id) < 48 or self._letter_of_task(id[:48]) not in REPEATED:
            return id
        own = _changed(id, 0, number)
        return _changed(own, 16, number) if self._letters.get(id[16:48], "-") in REPEATED else own

    def copied_text(self, text: str, number: int) -> str:
        """A text with all ids of a copy."""
        return _ID.sub(lambda match: self.copied(match[0], number), text)

    def _expanded(self, value: Any, key: str = "") -> Any:
        """A value with the tasks and refs of all copies."""
        if isinstance(value, dict):
            return {name: self._expanded(its, name) for name, its in value.items()}
        if not isinstance(value, list):
            return value
        found = []
        for one in value:
            is_repeated = key in ("tasks", "refs", "owners") and self._is_repeated(json.dumps(one))
            found += self._copies_of(one) if is_repeated else [self._expanded(one)]
        return found

    def _copies_of(self, value: Any) -> list[Any]:
        text = json.dumps(value)
        return [json.loads(self.copied_text(text, number)) for number in range(self.pairs)]

    def _is_repeated(self, text: str) -> bool:
        return any(self.copied(id, 1) != id for id in _ID.findall(text))

    def _letters_of_tasks(self) -> dict[str, str]:
        """The letter of the owner's node for each task that a worker has submitted."""
        found = {}
        for letter, (answer, _) in self._answers.items():
            for data in answer["core_workers"].values():
                found.update({task["task_id"]: letter for task in data.get("tasks", ())})
        return found

    def _letter_of_task(self, task_id: str) -> str:
        owner = self._tasks.get(task_id, "")
        return owner if owner in REPEATED else self._letters.get(task_id[16:48], "")

    def _rows(self, method: str) -> list[Any]:
        name = next(name for name in self._tables if name.endswith(f"/{method}"))
        return list(getattr(self._reply(name), REPLIES[method]))

    def _reply(self, name: str) -> Any:
        return getattr(ray_stubs.gcs_service_pb2, f"{name.rpartition('/')[2]}Reply").FromString(self._tables[name])

    def _letter_of_row(self, row: Message) -> str:
        """The letter of the node that a row is about."""
        found = [self._letters[one] for one in _ids(row) if one in self._letters]
        tasks = [self._letter_of_task(one) for one in _ids(row) if len(one) == 48]
        return next((letter for letter in (*found, *tasks) if letter), "")

    def _node_id(self, letter: str, number: int) -> str:
        return next(id for id, its in self.nodes.items() if its == (letter, number))

    def _copy_into(self, message: Any, number: int, ip: str) -> None:
        """Gives a message the ids of a copy, and the address of its node."""
        for field, value in message.ListFields():
            if field.type == field.TYPE_MESSAGE:
                if field.message_type.GetOptions().map_entry:
                    continue
                for one in _all_of(value):
                    self._copy_into(one, number, ip)
            elif field.type == field.TYPE_BYTES:
                if not isinstance(value, bytes):
                    value[:] = [bytes.fromhex(self.copied(one.hex(), number)) for one in value]
                else:
                    setattr(message, field.name, bytes.fromhex(self.copied(value.hex(), number)))
            elif field.type == field.TYPE_STRING and value == self._ip and ip:
                setattr(message, field.name, ip)

    def _set_ports(self, row: Any, port: int) -> None:
        """All servers of a node are behind one port."""
        if hasattr(row, "node_manager_port"):
            row.node_manager_port = port
        if hasattr(row, "worker_address"):
            row.worker_address.port = port


def _changed(id: str, at: int, number: int) -> str:
    part = id[at : at + 8]
    return id if part == _NIL else f"{id[:at]}{int(part, 16) ^ number:08x}{id[at + 8 :]}"


def _all_of(value: Any) -> Iterable[Any]:
    """The values of a field, repeated or not."""
    return (value,) if isinstance(value, (bytes, Message)) else value


def _ids(message: Any) -> Iterator[str]:
    """All ids in a message."""
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            if not field.message_type.GetOptions().map_entry:
                for one in _all_of(value):
                    yield from _ids(one)
        elif field.type == field.TYPE_BYTES:
            for one in _all_of(value):
                yield one.hex()
