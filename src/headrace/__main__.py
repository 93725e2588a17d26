"""The entry point of `headrace` and `python -m headrace`: passwords leave the command line first, because the imports take a second."""

from headrace.argument_secrets import hide_passwords


def main() -> int:
    """Run the command line; returns its exit code."""
    hide_passwords()
    from headrace.cli import main as run

    return run()


if __name__ == "__main__":
    raise SystemExit(main())
