"""The ``dstack`` command, also as ``python -m dstack``. Heeds signals first of all, then loads the rest."""


def main() -> None:
    """Runs the command."""
    try:
        from dstack.ending import heed_signals

        heed_signals()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    from dstack.cli import main as command

    command(prog_name="dstack")


if __name__ == "__main__":
    main()
