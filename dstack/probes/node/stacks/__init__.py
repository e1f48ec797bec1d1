"""Stacks: tables of frames, origins and roles, and what the source of a frame says."""
