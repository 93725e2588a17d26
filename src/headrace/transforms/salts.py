"""Reads the secrets of hashes, and detects whether they have changed.

Invariant: a secret exists only in the memory of the driver and its tasks. State keeps a fingerprint, which shows a resumed pipe that the
secret has changed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace.errors import DefiniteError
from headrace.transforms.options import SALT_HINT, Transforms, check_salt


@dataclass(frozen=True, slots=True)
class Salts:
    """Secrets by the text that gives their location. Picklable; never displayed."""

    found: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    def of(self, reference: str) -> bytes:
        return self.found[reference] if reference else b""

    def fingerprints(self) -> dict[str, str]:
        """Return values that change with the secrets and reveal nothing else."""
        return {reference: hashlib.sha256(b"headrace salt\0" + secret).hexdigest()[:16] for reference, secret in self.found.items()}


def read_salts(transforms: Transforms) -> Salts:
    """Read the secrets that the transforms name."""
    return Salts({reference: _read(reference) for reference in transforms.salts})


def _read(reference: str) -> bytes:
    check_salt(reference, "hash_salt")
    kind, _, rest = reference.partition(":")
    if kind == "env":
        found = os.environ.get(rest, "").encode()
        where = f"the variable {rest} is not set, or empty"
    else:
        try:
            found = Path(rest).read_bytes().rstrip(b"\r\n")
        except OSError as error:
            raise DefiniteError(f"the salt cannot be read: {error}", place=f"hash_salt = {reference}", hint=SALT_HINT) from error
        where = "the file is empty"
    if not found:
        raise DefiniteError(f"there is no salt: {where}", place=f"hash_salt = {reference}", hint="put a long random text there")
    try:
        found.decode()
    except UnicodeDecodeError as error:
        raise DefiniteError("the salt is not text", place=f"hash_salt = {reference}", hint="use letters and digits") from error
    return found
