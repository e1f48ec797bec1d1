"""The kinds of findings, one module each, and what several of them share."""
