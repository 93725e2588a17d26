"""Partial updates of JSON columns as whole ones."""

from __future__ import annotations

from headrace.errors import DefiniteError


def plain_update(event: memoryview, table_map: bytes, place: str) -> bytes:
    """A PARTIAL_UPDATE_ROWS event, given without checksum, as the UPDATE_ROWS event it stands for."""
    del event, table_map
    raise DefiniteError(
        "cannot read a partial update of a JSON column", place=place, hint="SET GLOBAL binlog_row_value_options = '' on the source"
    )
