"""Samples the stacks of running threads many times a second, without pausing them."""
