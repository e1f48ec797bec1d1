"""HTML pages that work without a network: each is one file with its data, its style and its scripts."""
