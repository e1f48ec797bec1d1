"""The workers of a snapshot in groups: by node, class, placement group or label; and in the order of a column."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from typing import Literal, TypeVar

from dstack.analysis.graph.resource_holders import in_group
from dstack.analysis.index.ranks import LOCAL_RANK, RANK, names_in
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming import names
from dstack.analysis.stacks.app_threads import kind_of
from dstack.analysis.views.inventory import ClusterInventory, WorkerSummary
from dstack.analysis.views.node_resources import Amount
from dstack.analysis.views.worker_state import FIGURES, Figure, Total, total
from dstack.model.snapshot import Node, PlacementGroup, Worker
from dstack.words import grouped

Column = Literal["activity", "name"] | Figure
"""A column to sort by."""
OWN_LABELS = ("ray.io/node-id",)
"""Labels that differ on each node."""
MAX_GROUPINGS = 16
"""So many labels of nodes, and so many of programs, are offered to group by."""
NUMBER = re.compile(r"(.*?)([0-9]{1,18})", re.DOTALL)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Order:
    """The order of workers and groups. Figures are sorted from the largest; what is unknown always comes last."""

    column: Column = "activity"
    is_reversed: bool = False

    @property
    def figure(self) -> Figure | None:
        """The figure to sort by, None for the activity and the name."""
        return self.column if isinstance(self.column, Figure) else None

    @property
    def is_descending(self) -> bool:
        """Whether the largest value comes first."""
        return (self.figure is not None) != self.is_reversed

    def sorted(self, items: Iterable[T], value: Callable[[T], float | None]) -> list[T]:
        """The items by a figure; equal and unknown ones keep their order."""
        valued = [(value(item), item) for item in items]
        known = [(number, item) for number, item in valued if number is not None]
        known.sort(key=lambda pair: -pair[0] if self.is_descending else pair[0])
        return [*(item for _, item in known), *(item for number, item in valued if number is None)]


@dataclass(frozen=True, slots=True)
class WorkerGrouping:
    """A way to group workers; ``name`` is that of a label of nodes, or of a dimension or label of programs."""

    kind: Literal["node", "class", "placement group", "node label", "label", "all"]
    name: str = ""

    @property
    def words(self) -> str:
        """``by node``, ``by label stage``; ``not grouped``."""
        return "not grouped" if self.kind == "all" else f"by {self.kind}" + (f" {self.name}" if self.name else "")


BY_NODE = WorkerGrouping("node")


@dataclass(frozen=True, slots=True)
class BundlePlace:
    """A bundle of a placement group: the node that it is on, the amounts in it, and the workers in it."""

    number: int
    node: Node | None
    amounts: tuple[Amount, ...]
    workers: tuple[Worker, ...]


@dataclass(frozen=True, slots=True)
class WorkerGroup:
    """Workers with something in common; ``key`` is unique within the grouping, and the same in another snapshot.

    The workers of a placement group that are in ``bundles`` are among ``workers`` too.
    """

    key: str
    title: str
    workers: tuple[Worker, ...]
    node: Node | None = None
    placement_group: PlacementGroup | None = None
    bundles: tuple[BundlePlace, ...] = ()

    @property
    def outside_bundles(self) -> tuple[Worker, ...]:
        """The workers that are in no known bundle."""
        inside = {worker.worker_id for bundle in self.bundles for worker in bundle.workers}
        return tuple(worker for worker in self.workers if worker.worker_id not in inside)


class WorkerGroups:
    """The groups of one inventory."""

    def __init__(self, index: SampleIndex, inventory: ClusterInventory) -> None:
        self._index = index
        self._inventory = inventory

    def groupings(self) -> tuple[WorkerGrouping, ...]:
        """All ways to group these workers."""
        found = [BY_NODE, WorkerGrouping("class")]
        if self._index.sample.placement_groups:
            found.append(WorkerGrouping("placement group"))
        labels = dict.fromkeys(name for node in self._inventory.nodes for name in node.labels)
        named = (name for name in sorted(labels) if name not in OWN_LABELS)
        found += map(partial(WorkerGrouping, "node label"), islice(named, MAX_GROUPINGS))
        ranks = (self._index.ranks(worker.worker_id) for worker in self._index.snapshot.workers)
        of_programs = (name for name in names_in(ranks) if name not in (RANK, LOCAL_RANK))
        found += map(partial(WorkerGrouping, "label"), islice(of_programs, MAX_GROUPINGS))
        return (*found, WorkerGrouping("all"))

    def groups(self, grouping: WorkerGrouping, order: Order) -> tuple[WorkerGroup, ...]:
        """The groups in this order; by nature of the grouping, unless the order is that of a figure or reversed."""
        found = list(self._groups(grouping))
        if order.figure is not None:
            figure = order.figure
            return tuple(order.sorted(found, lambda group: self.totals((figure,), group.workers)[figure].value))
        return tuple(reversed(found) if order.is_reversed else found)

    def workers(self, workers: Iterable[Worker], order: Order) -> Sequence[WorkerSummary]:
        """The summaries of these workers in this order."""
        found = self._inventory.summaries(workers)
        if order.figure is not None:
            figure = order.figure
            return order.sorted(found, lambda one: figure.value(one.figures))
        by_name = sorted(found, key=_by_name) if order.column == "name" else found
        return list(reversed(by_name)) if order.is_reversed else by_name

    def totals(self, figures: Iterable[Figure], workers: Iterable[Worker]) -> dict[Figure, Total]:
        """Some figures of several workers."""
        own = list(map(self._inventory.figures, workers))
        return {figure: total(figure, own) for figure in figures}

    @cached_property
    def known_figures(self) -> tuple[Figure, ...]:
        """The figures that at least one worker has, the most important ones first."""
        own = list(map(self._inventory.figures, self._index.snapshot.workers))
        return tuple(figure for figure in FIGURES if any(figure.value(one) is not None for one in own))

    # The groups of each kind

    def _groups(self, grouping: WorkerGrouping) -> Iterator[WorkerGroup]:
        match grouping.kind:
            case "node":
                titles = names.nodes(self._inventory.nodes)
                yield from (self._of_node(node, titles[node.node_id]) for node in self._inventory.nodes)
            case "placement group":
                yield from self._by_placement_group()
            case "all":
                yield WorkerGroup("all", "all workers", self._index.snapshot.workers)
            case _:
                yield from self._by_title(grouping)

    def _of_node(self, node: Node, title: str) -> WorkerGroup:
        return WorkerGroup(node.node_id, title, tuple(self._inventory.on_node(node)), node=node)

    def _by_title(self, grouping: WorkerGrouping) -> Iterator[WorkerGroup]:
        found = grouped((self._title(worker, grouping), worker) for worker in self._index.snapshot.workers)
        none = f"no {grouping.name}"
        for title in sorted(found, key=lambda title: (title == none, *_by_number(title))):
            yield WorkerGroup(f"{grouping.kind}/{grouping.name}/{title}", title, tuple(found[title]))

    def _title(self, worker: Worker, grouping: WorkerGrouping) -> str:
        if grouping.kind == "class":
            return self._class(worker)
        if grouping.kind == "label":
            return self._index.ranks(worker.worker_id).words(grouping.name) or f"no {grouping.name}"
        node = self._index.nodes.get(worker.node_id)
        labels = node.labels if node else {}
        return f"{grouping.name}={labels[grouping.name]}" if grouping.name in labels else f"no {grouping.name}"

    def _class(self, worker: Worker) -> str:
        """``actor Trainer``, ``driver train.py``, ``task load``; ``worker`` for one that runs nothing."""
        sample = self._index.worker_samples.get(worker.worker_id)
        running = (sample.running_task_ids if sample else None) or (None,)
        return kind_of(self._index, worker, running[0])

    def _by_placement_group(self) -> Iterator[WorkerGroup]:
        within: dict[str, dict[int | None, list[Worker]]] = defaultdict(lambda: defaultdict(list))
        outside: list[Worker] = []
        for worker in self._index.snapshot.workers:
            group_id, bundle = self._place(worker)
            within[group_id][bundle].append(worker) if group_id else outside.append(worker)
        for group in self._index.sample.placement_groups:
            own = within.pop(group.placement_group_id, {})
            workers = tuple(worker for several in own.values() for worker in several)
            bundles = tuple(self._bundle(group, number, own.get(number, ())) for number in range(len(group.bundles)))
            title = names.placement_group(group)
            yield WorkerGroup(f"group/{group.placement_group_id}", title, workers, None, group, bundles)
        for group_id, own in within.items():
            workers = tuple(worker for several in own.values() for worker in several)
            yield WorkerGroup(f"group/{group_id}", f"placement group {names.short(group_id)}", workers)
        if outside:
            yield WorkerGroup("group/", "no placement group", tuple(outside))

    def _bundle(self, group: PlacementGroup, number: int, workers: Iterable[Worker]) -> BundlePlace:
        node = self._index.nodes.get(group.bundles[number].node_id or "")
        return BundlePlace(number, node, self._inventory.resources.bundle_amounts(group, number), tuple(workers))

    def _place(self, worker: Worker) -> tuple[str | None, int | None]:
        """The placement group of a worker's actor or task, and its bundle, if known.

        The resources that it holds name both; an idle worker may still show those of its last task.
        """
        sample = self._index.worker_samples.get(worker.worker_id)
        actor = self._index.actors.get(worker.actor_id or "")
        running = (sample.running_task_ids if sample else None) or ()
        if actor is None and not running:
            return None, None
        held = (actor.held if actor else {}) or (sample.held if sample else {})
        places = [place for name in held if (place := in_group(name))]
        bundle = next((place.bundle for place in places if place.bundle is not None), None)
        if places:
            return places[0].group, bundle
        tasks = (self._index.tasks.get(task_id) for task_id in running)
        asked = (actor.placement_group_id if actor else None, *(task.placement_group_id for task in tasks if task))
        return next(filter(None, asked), None), None


def _by_name(one: WorkerSummary) -> tuple[str, int, str]:
    """By name; workers with ranks of one class by rank."""
    rank = one.ranks.rank
    return (one.kind, rank, one.name) if rank is not None else (one.name, -1, "")


def _by_number(title: str) -> tuple[str, int]:
    """Orders ``tp 9`` before ``tp 10``."""
    found = NUMBER.fullmatch(title)
    return (found[1], int(found[2])) if found else (title, -1)
