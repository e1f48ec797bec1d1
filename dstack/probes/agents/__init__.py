"""Stacks from Ray's own agents, for processes that dstack cannot read."""
