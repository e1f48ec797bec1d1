"""What several samples prove together: what is confirmed, what changed, what polls, and what was not read."""
