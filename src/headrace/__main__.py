"""The entry point of `headrace` and `python -m headrace`.

Passwords leave the command line and signal handlers are installed before the imports, which take a second. Signals wait from the first line
on, also while the process replaces itself without its passwords.
"""

import _signal  # type: ignore[import-not-found]  # built in; `signal` takes longer to import than all of this

from headrace.argument_secrets import hide_passwords


def main() -> int:
    """Run the command line; returns its exit code."""
    _signal.pthread_sigmask(_signal.SIG_BLOCK, (_signal.SIGINT, _signal.SIGTERM))
    hide_passwords()
    from headrace import shutdown

    shutdown.install()
    from headrace.cli import main as run

    return shutdown.run(run)


if __name__ == "__main__":
    raise SystemExit(main())
