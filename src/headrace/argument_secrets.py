"""Removes passwords from the command line, which every user of the machine can read.

The kernel shows the arguments from the moment the process starts, and only running code can remove them. So this module runs before all
other imports and imports almost nothing itself. The remaining window is the start of Python. Decision 47 gives figures.
"""

import os
import sys

SOURCE, SINK, KAFKA = "HEADRACE_SOURCE_PASSWORD", "HEADRACE_SINK_PASSWORD", "HEADRACE_KAFKA_PASSWORD"
REGISTRY, KAFKA_PROPERTIES = "HEADRACE_REGISTRY_PASSWORD", "HEADRACE_KAFKA_SECRETS"
# The modules that define these variables are slow to import. A test compares the names.
VARIABLES = {
    "mysql": SOURCE,
    "mariadb": SOURCE,
    "scylla": SOURCE,
    "clickhouse": SINK,
    "clickhouses": SINK,
    "cql": SINK,
    "kafka": KAFKA,
    "http": REGISTRY,
    "https": REGISTRY,
}
_REGISTRY_FLAG = "--registry"
_FAILED = 2


def hide_passwords() -> None:
    """Restart the command with the passwords of its arguments moved to the environment; return if there are none."""
    cleaned: list[str] = []
    found: dict[str, str] = {}
    flag = ""
    for argument in sys.argv[1:]:
        name, value = _flag_and_value(argument)
        without, secrets = strip_secrets(value, registry=_REGISTRY_FLAG in (name, flag))
        for variable, secret in secrets.items():
            if found.setdefault(variable, secret) != secret:
                sys.stderr.write(
                    f"headrace: two addresses have different passwords, and both would be read from {variable}\n"
                    "  remedy: write a file of pipes, where each address has a password of its own: see docs/pipes.md\n"
                )
                raise SystemExit(_FAILED)
        cleaned.append(f"{name}={without}" if name else without)
        flag = argument
    if found:
        os.execve(sys.executable, [sys.executable, "-m", "headrace", *cleaned], {**os.environ, **found})


def strip_secrets(argument: str, *, registry: bool = False) -> tuple[str, dict[str, str]]:
    """Return an argument without its secrets, and the secrets by environment variable."""
    scheme, is_address, _ = argument.partition("://")
    if not is_address or scheme not in VARIABLES or (VARIABLES[scheme] == REGISTRY and not registry):
        return _hidden_in_statement(argument)
    without, password = _hidden_in_account(argument)
    secrets = {} if password is None else {VARIABLES[scheme]: password}
    if scheme == "kafka" and "?" in without:
        from headrace.kafka.address import without_secrets

        without, properties = without_secrets(without)
        secrets |= {KAFKA_PROPERTIES: properties} if properties else {}
    return without, secrets


def secret_variables(address: str) -> tuple[str, ...]:
    """Return the environment variables that hold the secrets of an address: the password's, then others; none of an address without."""
    variable = VARIABLES.get(address.partition("://")[0])
    return () if variable is None else (variable, KAFKA_PROPERTIES) if variable == KAFKA else (variable,)


def _flag_and_value(argument: str) -> tuple[str, str]:
    """Split `--flag=VALUE`; the flag is empty for any other argument."""
    name, is_flag, value = argument.partition("=")
    return (name, value) if argument.startswith("--") and is_flag else ("", argument)


def _hidden_in_account(address: str) -> tuple[str, str | None]:
    """Return `scheme://user:password@host…` without the password, and the password; None if there is none."""
    scheme, _, rest = address.partition("://")
    end = min((at for at in map(rest.find, "/?#") if at >= 0), default=len(rest))
    account, _, host = rest[:end].rpartition("@")
    user, has_password, password = account.partition(":")
    if not has_password:
        return address, None
    from urllib.parse import unquote

    return f"{scheme}://{user}@{host}{rest[end:]}", unquote(password)


def _hidden_in_statement(text: str) -> tuple[str, dict[str, str]]:
    """Return a CREATE DATABASE … ENGINE = MaterializeMySQL(…) without its password, and the password."""
    if "MYSQL" not in text.upper():
        return text, {}
    from headrace.materialize_mysql.statement_parser import hide_password

    without, password = hide_password(text)
    return without, {} if password is None else {SOURCE: password}
