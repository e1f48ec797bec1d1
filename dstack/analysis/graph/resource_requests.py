"""Waits for resources: which nodes could ever satisfy a request, and which holders must release theirs first.

A request is satisfied by any one node that could ever fit it. On a node, all missing resources must be released. For
each resource that is at least the smallest number of holders that have enough of it.

Of placement groups, only necessary conditions are used, by their strategy: some node has room for each bundle, or one
node for all of them (STRICT_PACK). If these hold and the bundles still cannot be placed together, any holder of the
resources must release them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor
from typing import TypeAlias

import msgspec

from dstack.analysis.graph.autoscaling import MAX_REPORTS, Autoscaling
from dstack.analysis.graph.builder import FEW, GraphBuilder, waits_for
from dstack.analysis.graph.membership import Satisfies
from dstack.analysis.graph.resource_holders import (
    EPSILON,
    Amounts,
    Holders,
    bundle_of,
    fits,
    in_group,
    is_implied,
    plain,
    summed,
    wanted,
)
from dstack.analysis.graph.users import Users
from dstack.analysis.index.sample_index import SampleIndex
from dstack.model.diagnosis import Group, Target, Vertex, Wait
from dstack.model.snapshot import Bundle, Node, PlacementGroup
from dstack.model.vertex_facts import (
    Bundles,
    Labels,
    Never,
    Reason,
    ResourceRequest,
    assumption,
    never,
    reason,
    subject,
)
from dstack.model.vertex_keys import AnyKey, GroupKey, Id
from dstack.observed.node import Task

_SET = re.compile(r"in\((.*)\)")
AWAITED_GROUP = ("PENDING", "PREPARED")
WaitOrNever = tuple[Wait | None, Never | None]
"""The wait for something, or the reason why it can never be satisfied; both None if neither is known."""
Selectors: TypeAlias = Sequence[Mapping[str, str]]
"""Label selectors of which a node must satisfy one; none if any node will do."""
MAX_PAIRS = 50_000
"""At most so many pairs of bundle and node are examined to prove that bundles do not fit on different nodes."""


def labels_match(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Whether a node's labels satisfy all of ``value``, ``!value``, ``in(a,b)`` and ``!in(a,b)``, as Ray 2.60 has them.

    A node without the label satisfies conditions with ``!``.
    """
    return all(_matches(condition, labels.get(key)) for key, condition in selector.items())


def any_matches(selectors: Selectors, labels: Mapping[str, str]) -> bool:
    """Whether a node's labels satisfy one of these selectors, if there are any."""
    return not selectors or any(labels_match(selector, labels) for selector in selectors)


def asked_labels(index: SampleIndex, task: Task) -> Selectors:
    """The label selectors of a task, or of the actor that it creates: Ray takes the first one that a node satisfies.

    Core workers report none for tasks (Ray 2.60), the task events do.
    """
    actor = index.actors.get(task.actor_id or "") if task.kind == "ACTOR_CREATION_TASK" else None
    if actor and (actor.label_selector or actor.fallback_labels):
        return (actor.label_selector, *actor.fallback_labels)
    times = index.snapshot.task_times.get(task.task_id)
    return (task.label_selector,) if task.label_selector else times.label_options if times else ()


def _matches(condition: str, value: str | None) -> bool:
    sought = condition.removeprefix("!")
    among = _SET.fullmatch(sought)
    values = [one.strip() for one in among[1].split(",")] if among else [sought]
    return (value in values) != condition.startswith("!")


class Resources:
    """The cluster's resources in one sample."""

    def __init__(self, graph: GraphBuilder, users: Users) -> None:
        self._graph = graph
        self._index = graph.index
        self.nodes = [node for node in self._index.snapshot.nodes if node.alive]
        self.holders = Holders(graph, users)
        self._autoscaling = Autoscaling(self._index.snapshot)
        self.unread = users.unobserved
        """The target for a worker that could not be read."""
        self._known: dict[Id, WaitOrNever] = {}
        self._places: dict[Id, Sequence[tuple[Node, Amounts]]] = {}

    def wait_of_task(self, task: Task) -> WaitOrNever:
        """Why a task, or the creation of an actor, has no node yet."""
        group_id = _group_of(task)
        if group_id and (wait := self._wait_for_group(group_id)):
            return wait, None
        wait, never = self.wait_of(task.required_resources, asked_labels(self._index, task), group_id)
        return (self._on_its_node(task, wait) if wait else None), never

    def _on_its_node(self, task: Task, wait: Wait) -> Wait:
        """The wait for room on the node whose raylet has the request for an actor, in place of one for the scheduler.

        The GCS says which node that is. Other requests leave a node without room at once if another one has it.
        """
        actor = self._index.actors.get(task.actor_id or "") if task.kind == "ACTOR_CREATION_TASK" else None
        if actor is None or actor.worker_id or not any(group.has_unknown("scheduler") for group in wait.groups):
            return wait
        missing = next((amounts for node, amounts in self.places_for(task) if node.node_id == actor.node_id), {})
        if not missing:
            return wait
        node = self._index.nodes[actor.node_id or ""]
        room = self._room(self._shortages(node, missing), plain(missing))
        assumed = assumption("keeps node", actor, node)
        return msgspec.structs.replace(room, assumed=(assumed,), proven_groups=wait.groups)

    def places_for(self, task: Task) -> Sequence[tuple[Node, Amounts]]:
        """The nodes that could ever run a task, or the actor that it creates, each with what is missing there now."""
        request, selectors = wanted(task.required_resources), asked_labels(self._index, task)
        key = (tuple(request.items()), _key_of(selectors))
        if key not in self._places:
            self._places[key] = [(node, self.missing(request, node)) for node in self._able(request, selectors)]
        return self._places[key]

    def asked_by(self, task: Task) -> ResourceRequest | None:
        """What a task asks for, None if that is nothing."""
        request = wanted(task.required_resources)
        return self._asked(request, _group_of(task)) if request else None

    def _able(self, request: Amounts, selectors: Selectors) -> list[Node]:
        """The nodes that could ever satisfy a request."""
        return [n for n in self.nodes if fits(request, self.holders.total(n)) and any_matches(selectors, n.labels)]

    def wait_of(self, required: Amounts, selectors: Selectors = (), group_id: str | None = None) -> WaitOrNever:
        """Why ``required`` is not available now on one node with such labels, perhaps in a placement group."""
        request = wanted(required)
        key = (tuple(request.items()), _key_of(selectors), group_id)
        if key not in self._known:
            self._known[key] = self._find(request, selectors, group_id)
        return self._known[key]

    def _find(self, request: Amounts, selectors: Selectors, group_id: str | None) -> WaitOrNever:
        able = self._able(request, selectors)
        asked = self._asked(request, group_id)
        if not able:
            return self._never_satisfied(request, selectors, group_id, asked)
        free = next((node for node in able if not self.missing(request, node)), None)
        if free is not None:
            because = reason("free on node", free) if request else reason("no request")
            key = (free.node_id, tuple(request.items()), group_id)
            return self.not_placed(asked if request else None, because, *key), None
        rooms = [self._shortages(node, self.missing(request, node)) for node in able]
        others = [] if group_id else self._other_nodes(request, selectors, asked)
        return self._any_of(rooms, others, tuple(request.items())), None

    def _asked(self, request: Amounts, group_id: str | None) -> ResourceRequest:
        """The amounts by the names that users know, with the bundle and placement group."""
        if group_id is None:
            return ResourceRequest(amounts=plain(request))
        group, bundle = self._index.placement_groups.get(group_id), bundle_of(request)
        return ResourceRequest(amounts=plain(request), bundle=bundle, is_in_group=True, group=group)

    def _never_satisfied(
        self, request: Amounts, selectors: Selectors, group_id: str | None, asked: ResourceRequest
    ) -> WaitOrNever:
        """The wait for what no present node could ever satisfy: for another node, or never."""
        if group_id and not self._is_known(group_id):
            room = self._graph.unknown(
                "room", group_id, tuple(request.items()), subject=subject("room for request", asked)
            )
            return waits_for("resources", room), None
        if group_id:
            return None, never("unsatisfiable", asked, reason("lacking bundle"))
        because = self._lacking_resource(request, selectors)
        return self.without_node(request, selectors, asked if request else None, because)

    def without_node(
        self,
        request: Amounts,
        selectors: Selectors,
        asked: ResourceRequest | Bundles | None,
        because: Reason,
        satisfies: Satisfies | None = None,
    ) -> WaitOrNever:
        """The wait for another node, or never, if no present node satisfies a request, for this reason.

        ``satisfies`` says whether other nodes would; by default one that has the ``request`` and the labels does.
        """
        if others := self._other_nodes(request, selectors, asked, because, satisfies):
            return self._resource_wait(others, 1, plain(request)), None
        joined_s = self._graph.membership.joined_s
        if joined_s is None:
            return None, never("unsatisfiable", asked, because)
        return None, never("unsatisfied", asked, because, joined_s)

    def _other_nodes(
        self,
        request: Amounts,
        selectors: Selectors,
        asked: ResourceRequest | Bundles | None,
        because: Reason | None = None,
        satisfies: Satisfies | None = None,
    ) -> list[Target]:
        """What may yet bring a node that satisfies a request: the autoscaler, or a node that joins or returns.

        An autoscaler that reports that it can add none may do so later, as its limits and its types can change. Without
        a reason ``because`` of which no present node does, only a node that was lost is another one.
        """

        def fits_on_one(nodes: Sequence[Node]) -> bool:
            return any(fits(request, node.resources) and any_matches(selectors, node.labels) for node in nodes)

        satisfies = satisfies or fits_on_one
        group = asked.group if isinstance(asked, Bundles) else None
        refused = self._autoscaling.refusal(request, group)
        if self._index.snapshot.autoscaler and not (refused and because):
            return [self._autoscaler(refused, request, satisfies if because else None)]
        expected = self._lost(request, selectors, satisfies) or refused
        if because and not expected:
            expected = self._graph.membership.last_change() or next(self._autoscaling.platform_events(), None)
        if expected is None:
            return []
        owner = (tuple(request.items()), _key_of(selectors), group.placement_group_id if group else None)
        new = subject("new node", group or asked, because, expected)
        return [self._graph.unknown("new node", *owner, subject=new)]

    def _autoscaler(self, refused: Reason | None, request: Amounts, satisfies: Satisfies | None) -> Target:
        """The autoscaler with what it reports; ``satisfies`` says which nodes a request lacks that none has now."""
        lost = self._autoscaling.came_and_went(satisfies) if satisfies else None
        own = [one for one in (refused, lost) if one]
        reports = (*own, *self._autoscaling.reports())[:MAX_REPORTS]
        name, owner = self._index.snapshot.autoscaler or "", (tuple(request.items()),) if own else ()
        return self._graph.unknown("autoscaler", *owner, subject=subject("autoscaler", name, *reports))

    def _lost(self, request: Amounts, selectors: Selectors, satisfies: Satisfies) -> Reason | None:
        """The lost node that would satisfy a request, with what it had of it."""
        lost = self._graph.membership.lost(satisfies)
        if lost is None:
            return None
        node, until = lost
        labels = {name: node.labels[name] for one in selectors for name in one if name in node.labels}
        amounts = {name: node.resources[name] for name in request if name in node.resources}
        return reason("lost node", node, Labels(values=labels) if labels else ResourceRequest(amounts=amounts), until)

    def _is_known(self, group_id: str) -> bool:
        """Whether all nodes of a placement group show its resources."""
        group = self._index.placement_groups.get(group_id)
        totals = {node.node_id: self.holders.total(node) for node in self.nodes}
        places = {bundle.node_id for bundle in group.bundles} if group else set()
        return bool(places) and all(
            node_id in totals and any((place := in_group(name)) and place.group == group_id for name in totals[node_id])
            for node_id in places
        )

    def _lacking_resource(self, request: Amounts, selectors: Selectors) -> Reason:
        """The first resource that rules out every node, with the most any node has of it."""
        for name, amount in request.items():
            most = max((self.holders.total(node).get(name, 0.0) for node in self.nodes), default=0.0)
            if most < amount - EPSILON:
                is_nowhere = most <= EPSILON
                most_of_node = ResourceRequest(amounts={name: most})
                return reason("lacking resource", name) if is_nowhere else reason("most of a node", most_of_node)
        if selectors:
            labels = Labels(values=dict(selectors[0]), others=tuple(map(dict, selectors[1:])))
            return reason("lacking nodes with labels", labels) if request else reason("lacking labels", labels)
        return reason("not all on one node")

    # What is missing, and its holders

    def missing(self, request: Amounts, node: Node) -> dict[str, float]:
        """The amounts to be released on a node; a shortage in a bundle is not counted again for its whole group."""
        free = self.holders.available(node)
        amounts = ((name, amount - free.get(name, 0.0)) for name, amount in request.items())
        short = {name: amount for name, amount in amounts if amount > EPSILON}
        return {name: amount for name, amount in short.items() if not is_implied(name, short)}

    def _shortages(self, node: Node, missing: Amounts) -> list[tuple[Node, str, int]]:
        """What is missing on a node: for each resource, how many of its holders must release it."""
        return [(node, name, self.holders.needed(node, name, amount)) for name, amount in missing.items()]

    def _any_of(self, rooms: Sequence[list[tuple[Node, str, int]]], others: Sequence[Target], key: Id) -> Wait:
        resources = plain(dict.fromkeys((name for room in rooms for _, name, _ in room), 0.0))
        if len(rooms) == 1 and not others:
            return self._room(rooms[0], resources)
        targets: list[Target] = []
        for room in rooms:
            targets += self._targets(room)
        wait = self._resource_wait([*targets, *others], 1, resources)
        return self._graph.shared(AnyKey("room", (key,)), wait, most=FEW, room=subject("room anywhere"))

    def _targets(self, room: list[tuple[Node, str, int]]) -> Sequence[Target]:
        """Targets of which any makes room on a node: its holders, or a helper if several of them are needed."""
        node, name, needs = room[0]
        holdings = self.holders.of(node, name)
        if len(room) == 1 and (needs == 1 or len(holdings) == 1) and len(holdings) <= FEW:
            return [held.target for held in holdings]
        key = AnyKey("room", (node.node_id, *((name, needs) for _, name, needs in room)))
        if key not in self._graph.vertices:
            wait = self._room(room, plain(dict.fromkeys((name for _, name, _ in room), 0.0)))
            self._graph.add(Vertex(key=key, kind="room", subject=subject("room on node", node), wait=wait))
        return [Target(vertex=key)]

    def _room(self, room: list[tuple[Node, str, int]], resources: Amounts) -> Wait:
        groups = tuple(self._held(node, name, needs) for node, name, needs in room)
        total = sum(len(self.holders.of(node, name)) for node, name, _ in room)
        wait = self._resource_wait([], sum(needs for _, _, needs in room), resources, total)
        return msgspec.structs.replace(wait, groups=groups)

    def _held(self, node: Node, name: str, needs: int) -> Group:
        targets = [held.target for held in self.holders.of(node, name)]
        if len(targets) <= FEW:
            return Group(needs=needs, targets=tuple(targets))
        key = AnyKey("holders", (node.node_id, name, needs))
        if key not in self._graph.vertices:
            (resource,) = plain({name: 0.0}) or {name: 0.0}
            holders = subject("holders", needs, len(targets), resource, node)
            wait = self._resource_wait(targets, needs, {resource: 0.0})
            self._graph.add(Vertex(key=key, kind="room", subject=holders, wait=wait))
        return Group(needs=1, targets=(Target(vertex=key),))

    def _resource_wait(self, targets: Sequence[Target], needs: int, resources: Amounts, total: int = 0) -> Wait:
        several = tuple(dict.fromkeys(targets)) if needs == 1 else tuple(targets)
        total = total or len(several)
        wait = Wait(
            kind="resources",
            groups=(Group(needs=needs, targets=several),),
            needed=needs,
            total=total,
            resources=tuple(sorted(resources)),
        )
        if total <= needs:
            return wait
        why = reason("any holders", needs, total) if needs > 1 else reason("any holder")
        return msgspec.structs.replace(wait, inferred=why)

    # Waits that do not depend on holders

    def not_placed(self, asked: ResourceRequest | Bundles | None, because: Reason, *owner: Id) -> Wait:
        """The wait for the scheduler, which could place it: an anomaly if two samples show the same."""
        is_anomaly = len(self._index.snapshot.samples) > 1
        scheduler = subject("scheduler", asked, *([reason("not said", because)] if is_anomaly else []))
        return waits_for("resources", self._graph.unknown("scheduler", *owner, subject=scheduler))

    def _wait_for_group(self, group_id: str) -> Wait | None:
        """The wait of a task in a placement group for that group; None if the group is placed."""
        group = self._index.placement_groups.get(group_id)
        if group is None:
            of_group = subject("group in no list")
            unlisted = self._graph.unknown("placement group", group_id, subject=of_group, unobserved=True)
            return waits_for("placement group", unlisted)
        if group.state in AWAITED_GROUP:
            return waits_for("placement group", Target(vertex=GroupKey(group_id)))
        if group.state != "CREATED":
            room = subject("room in group", group, group.state)
            return waits_for("placement group", self._graph.unknown("room", group_id, subject=room))
        return None

    # For placement groups

    def lacking_labels(self, bundles: Sequence[Bundle], others: Sequence[Node] = ()) -> Reason | None:
        """The labels of the first bundle that no node has, nor one of the others."""
        nodes = (*self.nodes, *others)
        for labels in (bundle.label_selector for bundle in bundles if bundle.label_selector):
            if not any(labels_match(labels, node.labels) for node in nodes):
                return reason("lacking labels", Labels(values=dict(labels)))
        return None

    def wait_for_any_holder(self, request: Amounts, asked: Bundles, satisfies: Satisfies, key: AnyKey) -> Wait | None:
        """The wait for any holder of these resources on any node, or for another node."""
        held = [held.target for node in self.nodes for name in request for held in self.holders.of(node, name)]
        targets = [*held, *self._other_nodes(request, (), asked, satisfies=satisfies)]
        wait = self._resource_wait(targets, 1, plain(request))
        return self._graph.shared(key, wait, most=FEW, room=subject("any holder")) if targets else None


def _key_of(selectors: Selectors) -> Id:
    """What identifies these label selectors."""
    return tuple(tuple(sorted(selector.items())) for selector in selectors)


def _group_of(task: Task) -> str | None:
    """The placement group that a task, or the actor that it creates, must run in."""
    places = map(in_group, task.required_resources)
    return task.placement_group_id or next((place.group for place in places if place), None)


# Placement groups


@dataclass(frozen=True, slots=True)
class Unit:
    """What must be on one node: a task or actor, a bundle of a placement group, or all of them (STRICT_PACK)."""

    resources: Amounts
    selectors: Selectors = ()


def units_of(group: PlacementGroup) -> list[Unit]:
    """The different units of a placement group that are not placed."""
    missing = _missing(group)
    if group.strategy == "STRICT_PACK":
        labels = {name: value for bundle in missing for name, value in bundle.label_selector.items()}
        return [Unit(summed(wanted(bundle.resources) for bundle in missing), (labels,) if labels else ())]
    units = (Unit(wanted(b.resources), (b.label_selector,) if b.label_selector else ()) for b in missing)
    return list({(tuple(unit.resources.items()), _key_of(unit.selectors)): unit for unit in units}.values())


def _missing(group: PlacementGroup) -> Sequence[Bundle]:
    """The bundles that are not placed; all if all were."""
    return [bundle for bundle in group.bundles if bundle.node_id is None] or group.bundles


def wait_of_group(resources: Resources, group: PlacementGroup) -> WaitOrNever:
    """Why a placement group is not placed, or why it can never be."""
    missing = _missing(group)
    bundles = [wanted(bundle.resources) for bundle in missing]
    asked = Bundles(group=group, has_strategy=True)
    totals = [resources.holders.total(node) for node in resources.nodes]
    why = cannot_hold(group.strategy, bundles, totals)
    why = why or resources.lacking_labels(missing)
    if group.scheduling_state == "INFEASIBLE":
        why = why or reason("bundles do not fit")

    def satisfies(others: Sequence[Node]) -> bool:
        fit = cannot_hold(group.strategy, bundles, [*totals, *(node.resources for node in others)]) is None
        return fit and resources.lacking_labels(missing, others) is None

    if why:
        return resources.without_node(summed(bundles), (), asked, why, satisfies)
    return _wait_for_bundles(resources, asked, bundles, satisfies), None


def _wait_for_bundles(resources: Resources, asked: Bundles, bundles: Sequence[Amounts], satisfies: Satisfies) -> Wait:
    group = asked.group
    free = [resources.holders.available(node) for node in resources.nodes]
    found = [resources.wait_of(unit.resources, unit.selectors)[0] for unit in units_of(group)]
    waits = [wait for wait in found if wait and not any(part.has_unknown("scheduler") for part in wait.groups)]
    if waits:
        groups = tuple(dict.fromkeys(part for wait in waits for part in wait.groups))
        if len(waits) == 1:
            return waits[0]
        named = tuple(sorted({name for wait in waits for name in wait.resources}))
        return Wait(kind="resources", groups=groups, needed=len(groups), total=len(groups), resources=named)
    if cannot_hold(group.strategy, bundles, free):
        key = AnyKey("holders", (group.strategy, *(tuple(one.items()) for one in bundles)))
        wait = resources.wait_for_any_holder(summed(bundles), asked, satisfies, key)
        if wait:
            return wait
    return resources.not_placed(asked, reason("room for bundles"), group.placement_group_id)


def cannot_hold(strategy: str, bundles: Sequence[Amounts], nodes: Sequence[Amounts]) -> Reason | None:
    """Why nodes with these amounts cannot hold the bundles, None if that cannot be proven."""
    if strategy == "STRICT_PACK":
        whole = summed(bundles)
        return None if any(fits(whole, node) for node in nodes) else reason("group too large")
    unplaceable = next((one for one in _distinct(bundles) if not any(fits(one, node) for node in nodes)), None)
    if unplaceable is not None:
        return reason("not on any node", ResourceRequest(amounts=dict(unplaceable)))
    if strategy == "STRICT_SPREAD":
        return _cannot_spread(bundles, nodes)
    have = summed(nodes)
    for name, amount in summed(bundles).items():
        if have.get(name, 0.0) < amount - EPSILON:
            return reason("lacking total", ResourceRequest(amounts={name: have.get(name, 0.0)}))
    kinds = _distinct(bundles)
    if len(kinds) == 1 and (room := sum(_copies_on(kinds[0], node, len(bundles)) for node in nodes)) < len(bundles):
        return reason("room for few", room)
    return None


def _distinct(bundles: Sequence[Amounts]) -> list[Amounts]:
    return list({tuple(sorted(bundle.items())): bundle for bundle in bundles}.values())


def _copies_on(bundle: Amounts, node: Amounts, most: int) -> int:
    """How many copies of a bundle a node can hold, at most ``most``."""
    times = ((node.get(name, 0.0) + EPSILON) / amount for name, amount in bundle.items())
    return floor(max(0.0, min([most, *times])))


def _cannot_spread(bundles: Sequence[Amounts], nodes: Sequence[Amounts]) -> Reason | None:
    """Why the bundles cannot be placed on different nodes, which needs a matching; None if that is unproven."""
    if len(bundles) > len(nodes):
        return reason("few nodes", len(nodes), len(bundles))
    kinds = _distinct(bundles)
    if len(kinds) == 1:
        room = sum(fits(kinds[0], node) for node in nodes)
        return None if room >= len(bundles) else reason("few nodes fit", room)
    if len(bundles) * len(nodes) > MAX_PAIRS:
        return None
    import networkx as nx  # takes 0.1 s, and is seldom needed

    pairs: nx.Graph[tuple[str, int]] = nx.Graph()
    pairs.add_nodes_from(("bundle", i) for i in range(len(bundles)))
    for i, bundle in enumerate(bundles):
        pairs.add_edges_from((("bundle", i), ("node", j)) for j, node in enumerate(nodes) if fits(bundle, node))
    matched = nx.bipartite.hopcroft_karp_matching(pairs, [("bundle", i) for i in range(len(bundles))])
    placed = sum(kind == "bundle" for kind, _ in matched)
    return None if placed == len(bundles) else reason("few nodes fit", placed)
