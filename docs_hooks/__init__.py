"""Pages of the documentation site that are generated when it is built; ``mkdocs.yml`` names ``hooks.py``."""
