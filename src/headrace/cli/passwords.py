"""Passwords leave the command line, which every user of the machine can read, before anything else happens."""

from __future__ import annotations

import os
import sys
from typing import Final
from urllib.parse import unquote, urlsplit, urlunsplit

from headrace.cql.address import is_cql
from headrace.cql.address import password_variable as cql_password
from headrace.kafka.address import PASSWORD_VARIABLE as KAFKA_PASSWORD
from headrace.kafka.address import SECRETS_VARIABLE, without_secrets
from headrace.pipes.schemes import is_kafka
from headrace.sinks.clickhouse.url import PASSWORD_VARIABLE as SINK_PASSWORD
from headrace.sources.mysql.connection import PASSWORD_VARIABLE as SOURCE_PASSWORD

_SCHEMES: Final = ("mysql://", "mariadb://", "clickhouse://", "clickhouses://", "kafka://", "scylla://", "cql://")


def hide_passwords() -> None:
    """Start over with passwords moved from the command line to the environment."""
    cleaned, environment = [], dict(os.environ)
    for argument in sys.argv[1:]:
        password, without = without_password(argument)
        if password is not None:
            environment[_password_variable(argument)] = password
        if is_kafka(without):
            without, secret = without_secrets(without)
            if secret:
                environment[SECRETS_VARIABLE] = secret
        cleaned.append(without)
    if cleaned != sys.argv[1:]:
        os.execve(sys.executable, [sys.executable, "-m", "headrace", *cleaned], environment)


def _password_variable(address: str) -> str:
    if is_kafka(address):
        return KAFKA_PASSWORD
    if is_cql(address):
        return cql_password(address)
    return SINK_PASSWORD if address.startswith("clickhouse") else SOURCE_PASSWORD


def without_password(argument: str) -> tuple[str | None, str]:
    if not argument.startswith(_SCHEMES):
        if "MYSQL" not in argument.upper():
            return None, argument
        from headrace.pipes.materialized.statement import hide_password

        hidden, secret = hide_password(argument)
        return secret, hidden
    parts = urlsplit(argument)
    user, found, password = parts.netloc.rpartition("@")[0].partition(":")
    if not found:
        return None, argument
    host = parts.netloc.rpartition("@")[2]
    return unquote(password), urlunsplit(parts._replace(netloc=f"{user}@{host}"))
