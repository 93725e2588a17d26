"""What SQL may do in the embedded engine: the grants of its user, and settings that no request may change.

The engine runs like clickhouse-local, where a table function can read any file and reach any host. Its own access control is the first line
of defence: everything that is not granted here is denied, including new features of later releases. So table functions, table engines and
database engines that read or write outside of the engine's own tables answer ACCESS_DENIED.
"""

from __future__ import annotations

from typing import Final

_PRIVILEGES: Final = (
    "SHOW, CHECK, SELECT, INSERT, ALTER TABLE, ALTER VIEW, ALTER DATABASE, CREATE DATABASE, CREATE TABLE, CREATE VIEW, "
    "CREATE ARBITRARY TEMPORARY TABLE, CREATE TEMPORARY VIEW, CREATE FUNCTION, DROP DATABASE, DROP TABLE, DROP VIEW, DROP FUNCTION, "
    "UNDROP TABLE, TRUNCATE, OPTIMIZE, KILL QUERY, KILL TRANSACTION, INTROSPECTION, SYSTEM DROP CACHE, SYSTEM MERGES, "
    "SYSTEM TTL MERGES, SYSTEM MOVES, SYSTEM CLEANUP, SYSTEM VIEWS, SYSTEM FLUSH, SYSTEM SYNC REPLICA, SYSTEM RESTART REPLICA, "
    "SYSTEM WAIT LOADING PARTS, SYSTEM LOAD PRIMARY KEY, SYSTEM UNLOAD PRIMARY KEY"
)
_FAMILIES: Final = ("", "Aggregating", "Coalescing", "Collapsing", "Graphite", "Replacing", "Summing", "VersionedCollapsing")
TABLE_ENGINES: Final = (
    *(f"{family}MergeTree" for family in _FAMILIES),
    *(f"Replicated{family}MergeTree" for family in _FAMILIES),
    *("Alias", "Buffer", "Distributed", "GenerateRandom", "Join", "Log", "MaterializedView", "Memory", "Merge", "Null", "Set"),
    *("StripeLog", "TinyLog", "View"),
)
"""Engines that store their own rows; every other engine of `system.table_engines` reads or writes elsewhere."""
DATABASE_ENGINES: Final = ("Atomic", "Memory")
TABLE_FUNCTIONS: Final = (
    *("SQLStandardValues", "cluster", "clusterAllReplicas", "dictionary", "format", "fuzzJSON", "fuzzQuery", "generateRandom"),
    *("generateSeries", "generate_series", "input", "loop", "merge", "null", "numbers", "numbers_mt", "primes", "values"),
    *("view", "viewExplain", "viewIfPermitted", "zeros", "zeros_mt"),
    *("mergeTreeAnalyzeIndexes", "mergeTreeAnalyzeIndexesUUID", "mergeTreeCodecBlockCounts", "mergeTreeIndex", "mergeTreeProjection"),
    "mergeTreeTextIndex",
)
"""Functions that generate rows or read the engine's own tables; no cluster is configured."""

VALUES_EXPRESSIONS: Final = ("input_format_values_interpret_expressions", "input_format_values_deduce_templates_of_expressions")
"""Switched off. Rows in the format Values may contain SQL expressions, also inside of text (`format(Values, '…')`), where
`statement_guard` does not see them; the function `file()`, which needs no grant, would read files of the data directory."""

FIXED_SETTINGS: Final = (
    # Parsers whose tokens `statement_guard` does not know, and SQL inside of text.
    *("dialect", "polyglot_dialect", "allow_experimental_polyglot_dialect", "allow_experimental_kusto_dialect"),
    *("allow_experimental_prql_dialect", "enable_json_ast_dialect", "enable_trino_dialect", "allow_experimental_eval_table_function"),
    *("additional_table_filters", "additional_result_filter", "parallel_replicas_custom_key"),
    # Names of files and hosts.
    *("format_schema", "format_schema_source", "format_template_resultset", "format_template_row", "output_format_schema"),
    *("input_format_record_errors_file_path", "format_avro_schema_registry_url", "rename_files_after_processing", "url_base"),
    *("into_outfile_create_parent_directories", "dynamic_disk_allow_from_env", "dynamic_disk_allow_include", "dynamic_disk_allow_from_zk"),
    *VALUES_EXPRESSIONS,
)


def render_users() -> str:
    grants = [f"GRANT {_PRIVILEGES} ON *.*", "GRANT dictGet ON *.*", "GRANT SET DEFINER ON *"]
    grants += [f"GRANT TABLE ENGINE ON {name}" for name in dict.fromkeys((*TABLE_ENGINES, *DATABASE_ENGINES))]
    return "\n".join(
        [
            "<clickhouse>",
            "<users><default><password></password><profile>default</profile><quota>default</quota><grants>",
            *(f"  <query>{grant}</query>" for grant in grants),
            "</grants></default></users>",
            f"<profiles><default>{''.join(f'<{name}>0</{name}>' for name in VALUES_EXPRESSIONS)}<constraints>",
            *(f"  <{name}><const/></{name}>" for name in FIXED_SETTINGS),
            "</constraints></default></profiles>",
            "<quotas><default/></quotas>",
            "</clickhouse>",
            "",
        ]
    )
