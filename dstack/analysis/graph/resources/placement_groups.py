"""Waits of placement groups that are not placed yet, by their strategy.

Only necessary conditions are used: some node has room for each bundle, or one node for all of them (STRICT_PACK). If
these hold and the bundles still cannot be placed together, any holder of the resources must release them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor

from dstack.analysis.graph.membership import Satisfies
from dstack.analysis.graph.resources.amounts import EPSILON, Amounts, fits, summed, wanted
from dstack.analysis.graph.resources.requests import Resources, WaitOrNever
from dstack.model.diagnosis import Wait
from dstack.model.snapshot import Node, PlacementGroup
from dstack.model.vertex_facts import Bundles, Reason, Request, reason
from dstack.model.vertex_keys import AnyKey

MAX_PAIRS = 50_000
"""At most so many pairs of bundle and node are examined to prove that bundles do not fit on different nodes."""


def wait_of_group(resources: Resources, group: PlacementGroup) -> WaitOrNever:
    """Why a placement group is not placed, or why it can never be."""
    missing = [wanted(bundle.resources) for bundle in group.bundles if bundle.node_id is None]
    bundles = missing or [wanted(bundle.resources) for bundle in group.bundles]
    asked = Bundles(group=group, has_strategy=True)
    totals = [resources.holders.total(node) for node in resources.nodes]
    why = cannot_hold(group.strategy, bundles, totals)
    if group.scheduling_state == "INFEASIBLE":
        why = why or reason("bundles do not fit")

    def satisfies(others: Sequence[Node]) -> bool:
        return cannot_hold(group.strategy, bundles, [*totals, *(node.resources for node in others)]) is None

    if why:
        return resources.without_node(summed(bundles), {}, asked, why, satisfies)
    return _wait(resources, asked, bundles, satisfies), None


def _wait(resources: Resources, asked: Bundles, bundles: Sequence[Amounts], satisfies: Satisfies) -> Wait:
    group = asked.group
    units = [summed(bundles)] if group.strategy == "STRICT_PACK" else bundles
    short = [unit for unit in _distinct(units) if not resources.is_free(unit)]
    waits = [wait for unit in short if (wait := resources.wait_of(unit)[0])]
    if waits:
        groups = tuple(dict.fromkeys(part for wait in waits for part in wait.groups))
        if len(waits) == 1:
            return waits[0]
        named = tuple(sorted({name for wait in waits for name in wait.resources}))
        return Wait(kind="resources", groups=groups, needed=len(groups), total=len(groups), resources=named)
    free = [resources.holders.available(node) for node in resources.nodes]
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
        return reason("not on any node", Request(amounts=dict(unplaceable)))
    if strategy == "STRICT_SPREAD":
        return _cannot_spread(bundles, nodes)
    have = summed(nodes)
    for name, amount in summed(bundles).items():
        if have.get(name, 0.0) < amount - EPSILON:
            return reason("lacking total", Request(amounts={name: have.get(name, 0.0)}))
    kinds = _distinct(bundles)
    if len(kinds) == 1 and (room := sum(_room(kinds[0], node, len(bundles)) for node in nodes)) < len(bundles):
        return reason("room for few", room)
    return None


def _distinct(bundles: Sequence[Amounts]) -> list[Amounts]:
    return list({tuple(sorted(bundle.items())): bundle for bundle in bundles}.values())


def _room(bundle: Amounts, node: Amounts, most: int) -> int:
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
