"""The cluster of ``examples/case_studies/document_pipeline.py``: two nodes with different resources.

Both have one address, so that reading takes no actor on the second node: the samples follow each other so closely that
the program makes no step between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TWO_SITES: Mapping[str, Any] = {
    "nodes": 2,
    "num_cpus": 2,
    "num_gpus": 1,
    "resources": ({"site_a": 100}, {"site_b": 100, "model_access": 2}),
}
