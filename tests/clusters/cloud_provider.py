"""A cloud for tests, as an external provider of Ray's autoscaler: nodes are raylets of this machine.

Nodes of a type whose ``node_config`` has ``fails`` cannot be had.
"""

import sys
from typing import Any

from ray.autoscaler._private.fake_multi_node.node_provider import FakeMultiNodeProvider
from ray.autoscaler.node_launch_exception import NodeLaunchException

CATEGORY, MESSAGE = "InsufficientInstanceCapacity", "There is no capacity for p4d.24xlarge in us-east-1a"


class Provider(FakeMultiNodeProvider):
    """Starts nodes, or says that there are none."""

    def create_node_with_resources_and_labels(self, node_config: dict[str, Any], *rest: Any) -> None:
        """Start nodes of a type, by its ``node_config``."""
        if not node_config.get("fails"):
            super().create_node_with_resources_and_labels(node_config, *rest)  # type: ignore[no-untyped-call]
            return
        try:
            raise RuntimeError(MESSAGE)
        except RuntimeError:
            raise NodeLaunchException(CATEGORY, MESSAGE, sys.exc_info()) from None
