"""Processes that take snapshots or make a recording, and can be killed at any time."""
