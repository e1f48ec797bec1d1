"""Probes on the nodes: where they run, their requests, and how their answers become one snapshot."""
