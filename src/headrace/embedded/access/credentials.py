"""The account of an embedded server: one user and a password, in a file of the data directory that only its owner can read.

The server writes the file while it holds the directory's lock, and before it publishes its port. So a client that finds the port finds the
matching account. The file is created with its final mode, so no other user can ever read it.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from headrace.errors import DefiniteError

CREDENTIALS_FILE: Final = "headrace-credentials.json"
_PASSWORD_BYTES: Final = 24
_MOST_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class Account:
    """The only user of an embedded server."""

    user: str
    password: str = field(repr=False)


def store_account(path: Path, user: str, password: str) -> Account:
    """Decide and store the account: the given password, else the stored one, else a random one."""
    stored = _read(path)
    account = Account(user, password or (stored.password if stored is not None else secrets.token_urlsafe(_PASSWORD_BYTES)))
    _write(path, account)
    return account


def read_account(path: Path) -> Account:
    """Return the account of the directory's server, for its clients."""
    account = _read(path)
    if account is None:
        raise DefiniteError(
            "the embedded server's password is missing",
            place=str(path / CREDENTIALS_FILE),
            hint="restart the server: it writes the file when it starts",
        )
    return account


def _read(path: Path) -> Account | None:
    file = path / CREDENTIALS_FILE
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DefiniteError(
            f"the embedded server's password cannot be read: {error.strerror}",
            place=str(file),
            hint="run the command as the user who owns the directory",
        ) from error
    with os.fdopen(descriptor, "rb") as opened:
        text = opened.read(_MOST_BYTES)
    try:
        record = json.loads(text)
        account = Account(str(record["user"]), str(record["password"]))
    except (ValueError, KeyError, TypeError) as error:
        # Not chained: the cause's text may contain the password.
        raise _damaged(file, type(error).__name__) from None
    if not account.password:
        raise _damaged(file, "empty password")
    return account


def _damaged(file: Path, reason: str) -> DefiniteError:
    hint = "stop the server, remove the file and start the server: it makes a new password (or set HEADRACE_SERVE_PASSWORD)"
    return DefiniteError(f"the file with the embedded server's password is damaged ({reason})", place=str(file), hint=hint)


def _write(path: Path, account: Account) -> None:
    temporary = path / f".{CREDENTIALS_FILE}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump({"user": account.user, "password": account.password}, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path / CREDENTIALS_FILE)
