"""Errors of the embedded server, as ClickHouse reports them: error code, message, and HTTP status.

Clients act on the code, so every error of this server has the code that ClickHouse uses for the same case.
"""

from __future__ import annotations

import re
from typing import Final

from headrace.errors import DefiniteError

UNKNOWN_COMPRESSION_METHOD: Final = 89
SYNTAX_ERROR: Final = 62
UNKNOWN_SETTING: Final = 115
INCORRECT_DATA: Final = 117
BAD_ARGUMENTS: Final = 36
READONLY: Final = 164
REQUIRED_PASSWORD: Final = 194
UNKNOWN_TYPE_OF_QUERY: Final = 69
INTO_OUTFILE_NOT_ALLOWED: Final = 358
SESSION_NOT_FOUND: Final = 372
SESSION_IS_LOCKED: Final = 373
INVALID_SESSION_TIMEOUT: Final = 374
NOT_IMPLEMENTED: Final = 48
AUTHENTICATION_FAILED: Final = 516
ACCESS_DENIED: Final = 497
UNKNOWN_FORMAT: Final = 73
CHECKSUM_DOESNT_MATCH: Final = 40
CANNOT_DECOMPRESS: Final = 271
TIMEOUT_EXCEEDED: Final = 159
UNKNOWN_EXCEPTION: Final = 1002

_NAMES: Final = {
    BAD_ARGUMENTS: "BAD_ARGUMENTS",
    CHECKSUM_DOESNT_MATCH: "CHECKSUM_DOESNT_MATCH",
    NOT_IMPLEMENTED: "NOT_IMPLEMENTED",
    SYNTAX_ERROR: "SYNTAX_ERROR",
    UNKNOWN_TYPE_OF_QUERY: "UNKNOWN_TYPE_OF_QUERY",
    UNKNOWN_COMPRESSION_METHOD: "UNKNOWN_COMPRESSION_METHOD",
    UNKNOWN_SETTING: "UNKNOWN_SETTING",
    INCORRECT_DATA: "INCORRECT_DATA",
    READONLY: "READONLY",
    REQUIRED_PASSWORD: "REQUIRED_PASSWORD",
    CANNOT_DECOMPRESS: "CANNOT_DECOMPRESS",
    INTO_OUTFILE_NOT_ALLOWED: "INTO_OUTFILE_NOT_ALLOWED",
    SESSION_NOT_FOUND: "SESSION_NOT_FOUND",
    SESSION_IS_LOCKED: "SESSION_IS_LOCKED",
    INVALID_SESSION_TIMEOUT: "INVALID_SESSION_TIMEOUT",
    AUTHENTICATION_FAILED: "AUTHENTICATION_FAILED",
    TIMEOUT_EXCEEDED: "TIMEOUT_EXCEEDED",
    UNKNOWN_EXCEPTION: "UNKNOWN_EXCEPTION",
    ACCESS_DENIED: "ACCESS_DENIED",
    UNKNOWN_FORMAT: "UNKNOWN_FORMAT",
}

# Error codes by HTTP status; every other code is 500.
_CODES_BY_STATUS: Final[dict[int, tuple[int, ...]]] = {
    400: (6, 7, 8, 25, 26, 27, 36, 38, 41, 44, 53, 56, 62, 72, 117, 167, 168, 223, 321, 376, 427, 441, 675, 676),
    401: (REQUIRED_PASSWORD,),
    403: (192, 193, 497, 512, AUTHENTICATION_FAILED),
    404: (46, 47, 50, 60, 63, 69, 73, 81, 115, 211, 336, 511, 784),
    408: (159,),
    411: (381,),
    413: (265,),
    501: (NOT_IMPLEMENTED,),
    503: (76, 209, 439),
}
_STATUS_BY_CODE: Final = {code: status for status, codes in _CODES_BY_STATUS.items() for code in codes}

_ENGINE_MESSAGE = re.compile(r"Code: (\d+)\. .*", re.DOTALL)
_EXPRESSIONS_REFUSED: Final = "Interpreting expressions is disabled"
_EXPRESSIONS_REMEDY: Final = (
    f"{_EXPRESSIONS_REFUSED}: an embedded server takes rows of the format Values as plain values of the columns' types "
    "(1 for a number, '1' for a text); evaluate expressions by INSERT INTO ... SELECT"
)
_VERSION_TRAILER = re.compile(r"\(version [^)]*(\([^)]*\))?\)?\s*$")


class QueryFailure(DefiniteError):
    """A request that is answered with a ClickHouse error."""

    def __init__(self, code: int, message: str, *, place: str = "", hint: str = "") -> None:
        super().__init__(message, place=place, hint=hint)
        self.code = code

    @property
    def status(self) -> int:
        return _STATUS_BY_CODE.get(self.code, 500)

    def text(self, version: str) -> str:
        """Return the error as ClickHouse writes it in a response body."""
        trailer = "" if _VERSION_TRAILER.search(self.message) else f" (version {version})"
        return f"{self.message}{trailer}\n"

    def __reduce__(self) -> tuple[object, ...]:
        return QueryFailure, (self.code, self.message)


def clickhouse_error(code: int, message: str) -> QueryFailure:
    """Return an error found by this server, in the engine's format."""
    return QueryFailure(code, f"Code: {code}. DB::Exception: {message}. ({_NAMES[code]})")


def named_error(code: int, name: str, message: str) -> QueryFailure:
    """Return an error of another process, in the engine's format."""
    return QueryFailure(code, f"Code: {code}. DB::Exception: {message.rstrip('.')}. ({name})")


def engine_failure(error: Exception) -> QueryFailure:
    """Return the error that the engine reported, without the wrappers in front of its text."""
    found = _ENGINE_MESSAGE.search(str(error))
    if found is None:
        return clickhouse_error(UNKNOWN_EXCEPTION, str(error).rstrip(". "))
    return QueryFailure(int(found[1]), found[0].strip().replace(_EXPRESSIONS_REFUSED, _EXPRESSIONS_REMEDY, 1))
