from __future__ import annotations

import pytest
from msgspec.structs import replace

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.inventory import Inventory
from dstack.model import Bundle
from dstack.observed_node import Disk, Gpu
from dstack.report.page.rows import node_rows as module
from dstack.report.page.rows.node_rows import NodeTable, node_table
from tests.unit.scenes import Scene

GIB = 2**30


def table_of(scene: Scene) -> NodeTable:
    analysed = AnalysedSnapshot.of(scene.snapshot())
    return node_table(Inventory(analysed.merged_index, analysed.diagnosis))


def test_a_node_has_its_host_its_resources_and_its_workers() -> None:
    scene = Scene()
    node = scene.node(
        free={"CPU": 1.0, "object_store_memory": 1.0 * GIB}, CPU=4.0, object_store_memory=2.0 * GIB, tpu=1
    )
    scene.nodes[0] = replace(
        node,
        cpu_count=8,
        cpu_percent=25.0,
        load_1m=1.5,
        memory_total_bytes=16 * GIB,
        memory_available_bytes=4 * GIB,
        disks=(Disk(use="session", path="/tmp/ray", total_bytes=100 * GIB, free_bytes=30 * GIB),),
        gpus=(Gpu(index=0, name="A100", utilisation_percent=93.0),),
    )
    scene.driver(node).computes()
    scene.group("CREATED", Bundle(resources={"CPU": 1.0}, node_id=node.node_id), name="trainers")
    scene.group("REMOVED", Bundle(resources={"CPU": 1.0}, node_id=node.node_id), name="former")
    table = table_of(scene)

    (row,) = table.rows
    assert table.resources == ("CPU", "object store")
    assert (row.workers, row.counts) == (1, (("running", 1),))
    assert (row.busy.text, row.busy.value) == ("25 % of 8", 25.0)
    assert (row.load.text, row.memory.text) == ("1.5", "12.0 of 16.0 GiB")
    assert [(cell.text, cell.value) for cell in row.amounts] == [("3 of 4", 3.0), ("1.0 of 2.0 GiB", 1.0)]
    assert row.more[:3] == (
        "tpu 1 of 1 used, 0 free",
        "disk: session 30.0 of 100.0 GiB free",
        "GPU 0 A100: 93 % busy",
    )
    assert [text for text in row.more if "placement group" in text] == [row.more[3]]
    assert "trainers" in row.more[3]


def test_what_is_unknown_is_no_number() -> None:
    scene = Scene()
    scene.driver(scene.node(CPU=4.0))
    row = table_of(scene).rows[0]

    assert [(cell.text, cell.value) for cell in (row.busy, row.load, row.memory)] == [("-", None)] * 3
    assert row.more == ("host not read",)


def test_a_dead_node_has_its_cause_and_no_resources() -> None:
    scene = Scene()
    scene.driver(scene.node(CPU=4.0))
    scene.nodes.append(replace(scene.node(alive=False, CPU=2.0), death_cause="lost heartbeats"))
    del scene.nodes[1]
    dead = table_of(scene).rows[-1]

    assert not dead.node.alive
    assert dead.more == ("lost heartbeats",)
    assert [cell.text for cell in dead.amounts] == ["-"]


def test_of_very_many_nodes_those_with_unread_workers_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_NODES", 2)
    scene = Scene()
    nodes = [scene.node(CPU=1.0) for _ in range(5)]
    scene.nodes[0] = replace(nodes[0], is_head=True)
    silent = scene.worker(nodes[4])
    silent.is_unreachable = silent.is_unreadable = True
    table = table_of(scene)

    assert [row.node.ip for row in table.rows] == [nodes[0].ip, nodes[4].ip]
    assert table.left_out == 3


def test_of_many_gpus_the_first_ones_are_listed() -> None:
    scene = Scene()
    node = scene.node(CPU=1.0)
    scene.nodes[0] = replace(node, cpu_count=1, gpus=tuple(Gpu(index=number) for number in range(12)))
    more = table_of(scene).rows[0].more

    assert more[-1] == "4 more GPUs"
    assert len(more) == 9
