"""Errors of the embedded server, as ClickHouse reports them: error code, message, and HTTP status.

Clients act on the code, so every error of this server has the code that ClickHouse uses for the same case.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Final

from headrace.errors import DefiniteError


class ErrorCode(IntEnum):
    """ClickHouse's codes of the errors that this server reports itself."""

    BAD_ARGUMENTS = 36
    CHECKSUM_DOESNT_MATCH = 40
    NOT_IMPLEMENTED = 48
    SYNTAX_ERROR = 62
    UNKNOWN_TYPE_OF_QUERY = 69
    UNKNOWN_FORMAT = 73
    UNKNOWN_COMPRESSION_METHOD = 89
    INCORRECT_DATA = 117
    TIMEOUT_EXCEEDED = 159
    READONLY = 164
    REQUIRED_PASSWORD = 194
    CANNOT_DECOMPRESS = 271
    INTO_OUTFILE_NOT_ALLOWED = 358
    SESSION_NOT_FOUND = 372
    SESSION_IS_LOCKED = 373
    INVALID_SESSION_TIMEOUT = 374
    ACCESS_DENIED = 497
    AUTHENTICATION_FAILED = 516
    UNKNOWN_EXCEPTION = 1002

    def failure(self, message: str) -> QueryFailure:
        """Return an error found by this server, in the engine's format."""
        return QueryFailure(self, f"Code: {self}. DB::Exception: {message}. ({self.name})")


# Error codes by HTTP status; every other code is 500.
_CODES_BY_STATUS: Final[dict[int, tuple[int, ...]]] = {
    400: (6, 7, 8, 25, 26, 27, 36, 38, 41, 44, 53, 56, 62, 72, 117, 167, 168, 223, 321, 376, 427, 441, 675, 676),
    401: (ErrorCode.REQUIRED_PASSWORD,),
    403: (192, 193, 497, 512, ErrorCode.AUTHENTICATION_FAILED),
    404: (46, 47, 50, 60, 63, 69, 73, 81, 115, 211, 336, 511, 784),
    408: (159,),
    411: (381,),
    413: (265,),
    501: (ErrorCode.NOT_IMPLEMENTED,),
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


def named_error(code: int, name: str, message: str) -> QueryFailure:
    """Return an error of another process, in the engine's format."""
    return QueryFailure(code, f"Code: {code}. DB::Exception: {message.rstrip('.')}. ({name})")


def engine_failure(error: Exception) -> QueryFailure:
    """Return the error that the engine reported, without the wrappers in front of its text."""
    found = _ENGINE_MESSAGE.search(str(error))
    if found is None:
        return ErrorCode.UNKNOWN_EXCEPTION.failure(str(error).rstrip(". "))
    return QueryFailure(int(found[1]), found[0].strip().replace(_EXPRESSIONS_REFUSED, _EXPRESSIONS_REMEDY, 1))
