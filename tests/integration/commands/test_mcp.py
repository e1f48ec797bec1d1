"""`dstack mcp` as an assistant uses it: the SDK's own client starts the command and calls its tools."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from dstack.cli.assistant import DATA_NOTE, MAX_CHARACTERS
from tests.clusters.shared_cluster import SharedCluster
from tests.examples.recorded import recorded

ANSWER_S = 300.0


@asynccontextmanager
async def server(*arguments: str, environment: Mapping[str, str] | None = None) -> AsyncIterator[Client]:
    parameters = StdioServerParameters(
        command=sys.executable, args=["-m", "dstack", "mcp", *arguments], env=dict(environment or os.environ)
    )
    async with Client(parameters, read_timeout_seconds=ANSWER_S) as client:
        yield client


async def answer(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """The answer of a tool, which has not failed."""
    text = await text_of(client, tool, is_error=False, **arguments)
    assert len(text) <= 1.2 * MAX_CHARACTERS
    document: dict[str, Any] = json.loads(text)
    assert document["note"] == DATA_NOTE
    return document


async def text_of(client: Client, tool: str, *, is_error: bool, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    (content,) = result.content
    assert bool(result.is_error) == is_error, content
    assert content.type == "text"
    return content.text


def with_server(
    use: Callable[[Client], Awaitable[None]], *arguments: str, environment: Mapping[str, str] | None = None
) -> None:
    async def run() -> None:
        async with server(*arguments, environment=environment) as client:
            await use(client)

    anyio.run(run)


def test_a_saved_deadlock_is_explained_by_all_tools() -> None:
    async def use(client: Client) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools.values())
        assert tools.keys() == {"check", "snapshot", "finding", "stacks", "call_graph", "more"}

        check = await answer(client, "check")
        assert (check["snapshot"], check["data"]["schema"]) == (1, "dstack.check/2")
        assert check["data"]["verdict"] == "deadlock"
        (found,) = check["data"]["findings"]

        report = await answer(client, "snapshot")
        assert report["data"].startswith("DEADLOCK  Cashier.order and Kitchen.cook wait for each other")

        finding = await answer(client, "finding")
        assert finding["data"] == found
        first, second = finding["data"]["members"][:2]

        stacks = await answer(client, "stacks", pid=first["pid"])
        assert {
            one["pid"] for group in stacks["data"]["groups"] for stack in group["stacks"] for one in stack["executions"]
        } == {first["pid"]}
        assert "Cashier.order" in json.dumps(stacks["data"])
        assert second["pid"] != first["pid"]

        graph = await answer(client, "call_graph")
        assert graph["data"]["schema"] == "dstack.graph/1"
        assert {"Cashier", "Kitchen"} <= {node["name"] for node in graph["data"]["nodes"]}

    with_server(use, str(recorded("two_actors")))


def test_a_mistake_of_an_assistant_is_answered_with_what_to_do() -> None:
    async def use(client: Client) -> None:
        assert "There is no snapshot 7. These are kept: 1." in await text_of(
            client, "finding", is_error=True, snapshot=7
        )
        assert "has 1 findings, so no finding 2" in await text_of(client, "finding", is_error=True, finding=2)
        assert "No stack of a process 1 was read" in await text_of(client, "stacks", is_error=True, pid=1)
        assert "No job is called x" in await text_of(client, "check", is_error=True, job="x")
        assert "Answer 99 is not kept" in await text_of(client, "more", is_error=True, answer=99, path="findings")

    with_server(use, str(recorded("two_actors")))


@pytest.mark.ray
def test_a_running_deadlock_is_found_and_older_snapshots_stay_known(shared: SharedCluster) -> None:
    async def use(client: Client) -> None:
        assert "No job is called x" in await text_of(client, "check", is_error=True, job="x")
        report = await answer(client, "snapshot")
        assert report["data"].startswith("DEADLOCK  Cashier.order and Kitchen.cook wait for each other")
        check = await answer(client, "check")
        assert check["snapshot"] == report["snapshot"] + 1
        finding = await answer(client, "finding", snapshot=report["snapshot"])
        assert finding["snapshot"] == report["snapshot"]
        assert finding["data"]["kind"] == "deadlock"

    with shared.running("two_actors") as example:
        with_server(use, "--address", example.address, environment=example.environment)


def test_a_missing_cluster_is_answered_with_what_to_do() -> None:
    async def use(client: Client) -> None:
        assert "127.0.0.1:1" in await text_of(client, "check", is_error=True)

    with_server(use, "--address", "127.0.0.1:1")
