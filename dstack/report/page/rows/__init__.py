"""The rows of the tables and trees of a report page, for its templates."""
