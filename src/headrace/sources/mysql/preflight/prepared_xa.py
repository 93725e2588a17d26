"""Checks for prepared XA transactions: their rows are already in the log, but count only when they are committed."""

from __future__ import annotations

from typing import Any

import pymysql
from pymysql.connections import Connection

from headrace.errors import DefiniteError
from headrace.sources.mysql.server.connection import MySQLAddress, server_errors

_MAY_NOT_RECOVER = (1142, 1227, 1401)


def check_no_prepared(connection: Connection[Any], address: MySQLAddress) -> None:
    """Raise if transactions are prepared: a start here would see their commits without their rows.

    A user without the privilege passes: the commit itself, when it comes, stops the stream with the same remedy.
    """
    with server_errors(address), connection.cursor() as cursor:
        try:
            cursor.execute("XA RECOVER")
        except pymysql.err.MySQLError as error:
            if error.args[0] in _MAY_NOT_RECOVER:
                return
            raise
        found = cursor.fetchall()
    if found:
        names = ", ".join(str(row[3]) for row in found[:5])
        raise DefiniteError(
            f"{len(found)} XA transactions are prepared on the source ({names}), whose rows would be missed when they are committed",
            place=str(address),
            hint="commit or roll back what XA RECOVER shows, then start again",
        )
