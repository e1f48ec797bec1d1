"""The stacks of many executions: merged, compared, and as rectangles of an icicle."""
