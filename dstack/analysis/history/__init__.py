"""The history of tasks: what called what, when it ran, and where."""
