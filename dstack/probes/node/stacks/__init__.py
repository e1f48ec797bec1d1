"""Stacks: tables of frames, origins and roles, source lines, redaction."""
