"""What both sides of a comparison make of their rows: how many there are, and the sum of a hash of each.

The hash of a row is the first 8 bytes, as a big-endian number, of the SHA-256 of its *canonical text*: the texts of its columns, in the
order of the schema, joined by commas. Each side computes it by its own server's functions, from what it keeps:

| kind | canonical text |
|---|---|
| integers, years, bits | decimal |
| decimals | all digits of the scale |
| floats | the 16 hexadecimal digits of the eight bytes of the value as a double, lowest byte first |
| dates and times | as SQL writes them in UTC, with the column's fractional digits |
| text, names, bytes | the number of bytes, a comma, the bytes (text in UTF-8) |
| documents (see `is_hashed`) | the SHA-256 of the bytes, in small hexadecimal digits |
| vectors | the hexadecimal digits of their bytes |
| UUIDs, IPv4 addresses | as people write them; IPv6 addresses: 32 hexadecimal digits |
| NULL | `N`, for text and bytes followed by a comma |

Invariant: two rows of one schema have the same canonical text exactly if they are equal: no text but that of strings holds a comma, a
string's length says where it ends, and no value's text is `N`. A sum does not depend on the order of rows, and unlike an exclusive or it
does not lose rows that occur twice. SHA-256 is not linear: values that change places between rows change the sum.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.model.column_types import ValueForm
from headrace.model.schema import Column

_MODULUS = 1 << 64
_LONG = ("mediumtext", "longtext", "mediumblob", "longblob")


@dataclass(frozen=True, slots=True)
class Digest:
    """The digest of a set of rows."""

    rows: int = 0
    total: int = 0
    """The sum of the row hashes, modulo 2**64."""

    def __add__(self, other: Digest) -> Digest:
        return Digest(self.rows + other.rows, (self.total + other.total) % _MODULUS)


def is_hashed(column: Column) -> bool:
    """Whether values may be too long for a server to concatenate into a text of the whole row."""
    return column.form in (ValueForm.JSON, ValueForm.GEOMETRY) or column.source_type.lower().startswith(_LONG)
