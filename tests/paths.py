"""Where the repository and the snapshots recorded for unit tests are."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORDED_CLUSTERS = ROOT / "tests" / "unit" / "recorded"
"""Snapshots of real clusters; those of the examples are in ``tests/recorded``."""
