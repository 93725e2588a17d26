"""The engine's configuration: small caches and few background threads, because it shares the machine with the pipeline."""

from __future__ import annotations

import os
from typing import Final

_MIB: Final = 1 << 20

_SERVER: Final = {
    "mark_cache_size": 64 * _MIB,
    "index_mark_cache_size": 16 * _MIB,
    "primary_index_cache_size": 64 * _MIB,
    "uncompressed_cache_size": 0,
    "index_uncompressed_cache_size": 0,
    "query_condition_cache_size": 16 * _MIB,
    "compiled_expression_cache_size": 32 * _MIB,
    "parquet_metadata_cache_size": 16 * _MIB,
    "iceberg_metadata_files_cache_size": 0,
    "vector_similarity_index_cache_size": 0,
    "text_index_tokens_cache_size": 16 * _MIB,
    "text_index_header_cache_size": 16 * _MIB,
    "text_index_postings_cache_size": 16 * _MIB,
    "unique_key_index_cache_size_bytes": 16 * _MIB,
    "max_thread_pool_free_size": 32,
}


def render_config() -> str:
    """Return the text of the configuration file."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    values = {**_SERVER, "max_server_memory_usage": memory // 2}
    lines = [f"    <{name}>{value}</{name}>" for name, value in values.items()]
    return "\n".join(["<clickhouse>", *lines, "</clickhouse>"]) + "\n"
