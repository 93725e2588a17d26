"""The entry point of `headrace` and `python -m headrace`.

Signal handlers are installed, and passwords leave the command line, before the imports, which take a second.
"""

from headrace import shutdown
from headrace.argument_secrets import hide_passwords


def main() -> int:
    """Run the command line; returns its exit code."""
    shutdown.install()
    hide_passwords()
    from headrace.cli import main as run

    return shutdown.run(run)


if __name__ == "__main__":
    raise SystemExit(main())
