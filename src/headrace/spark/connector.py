"""Finds Spark's Kafka connector, which is not part of pyspark, and returns the settings for it.

It takes, in this order: the user's choice (`--kafka-jars`, `HEADRACE_KAFKA_JARS`: a folder of jars, or coordinates for
`spark.jars.packages`); the jars that are pinned below, which it downloads to the cache and verifies; for another version of Spark, the
coordinates of that version. `python -m headrace.spark.connector` downloads the jars in advance.

A Java process accepts jars when it starts and while it runs, and coordinates only when it starts.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Final

import pyspark

from headrace.errors import DefiniteError, HeadraceError
from headrace.spark.kafka.maven_jars import fetch, parse_pin

JARS_VARIABLE: Final = "HEADRACE_KAFKA_JARS"
TRIED_WITH: Final = "4.3.0"
"""The version of Spark that the pinned jars were tested with."""
CONNECTOR: Final = tuple(
    parse_pin(line)
    for line in (
        # Maven Central had no connector of 4.3 when this was pinned: these run on Spark 4.3, as our tests show.
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0 f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767",
        "org.apache.kafka:kafka-clients:3.9.2 014b4ef36884478a932641818b080c36a8f8e2e92dc771e800c9d2694f4f83d8",
        "org.apache.commons:commons-pool2:2.13.1 f77a5060d6936a9144023584232f9de3f2248f1abfe156e9d31795f18770674f",
    )
)
_COORDINATES: Final = re.compile(r"[\w.-]+:[\w.-]+:[\w.-]+(,[\w.-]+:[\w.-]+:[\w.-]+)*")
_NAME: Final = "spark-sql-kafka-0-10"
_HINT: Final = f"give a folder with {_NAME} and its jars: --kafka-jars DIR, or {JARS_VARIABLE}"


def kafka_settings(given: str = "") -> dict[str, str]:
    """Return the settings of a Spark session that reads and writes Kafka; `given` is a folder of jars or Maven coordinates."""
    choice = given or os.environ.get(JARS_VARIABLE, "")
    if choice and _COORDINATES.fullmatch(choice) and not Path(choice).exists():
        return {"spark.jars.packages": choice}
    if choice:
        return {"spark.jars": ",".join(map(str, _jars_of(Path(choice))))}
    if pyspark.__version__ != TRIED_WITH:
        return {"spark.jars.packages": f"org.apache.spark:{_NAME}_{_scala()}:{pyspark.__version__}"}
    return {"spark.jars": ",".join(map(str, _jars_of(fetch_connector())))}


def fetch_connector() -> Path:
    """Return the folder of the pinned jars; download them if necessary."""
    try:
        return fetch("spark-kafka", CONNECTOR)
    except HeadraceError as error:
        raise DefiniteError(
            f"Spark's Kafka connector is not here and cannot be fetched: {error.message}", place=error.place, hint=_HINT
        ) from error


def _jars_of(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise DefiniteError(f"{folder} is no folder of jars, and no Maven coordinates", hint=_HINT)
    found = sorted(folder.resolve().glob("*.jar"))
    if not any(jar.name.startswith(_NAME) for jar in found):
        raise DefiniteError(f"the folder {folder} has no {_NAME}*.jar", hint=_HINT)
    odd = next((jar for jar in found if "," in str(jar)), None)
    if odd is not None:
        raise DefiniteError(f"the path {odd} has a comma in it, which Spark takes for the end of a name", hint="move the jars")
    return found


def _scala() -> str:
    jars = Path(pyspark.__file__).parent / "jars"
    library = next((jar.name for jar in jars.glob("scala-library-*.jar")), "scala-library-2.13.0.jar")
    return ".".join(library.removeprefix("scala-library-").split(".")[:2])


if __name__ == "__main__":
    try:
        print(f"Spark's Kafka connector is in {fetch_connector()}")
    except HeadraceError as error:
        sys.exit(f"headrace: {error}")
