"""The view of the wait-for graph."""
