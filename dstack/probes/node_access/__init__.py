"""Probes on the nodes: where they run, what they are asked, and how their answers become one snapshot."""
