"""Runs a program on fresh clusters under other schedules, until one of its runs hangs."""
