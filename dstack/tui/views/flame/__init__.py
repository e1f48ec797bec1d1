"""The view of merged stacks as a flame graph."""
