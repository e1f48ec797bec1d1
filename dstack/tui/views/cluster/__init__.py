"""The view of nodes, workers and actors."""
