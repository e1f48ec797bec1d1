"""``python -m dstack`` is the ``dstack`` command."""

from dstack.cli import main

main()
