"""Stacks as plain data: tables of frames, origins and roles, source lines, redaction."""
