"""`headrace verify`."""

from __future__ import annotations

import argparse
import functools
import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.control import add_process_options, verify_running
from headrace.cli.flags import (
    DIFFERENT,
    OK,
    UNDECIDED,
    Subcommands,
    add_command,
    add_setting_flags,
    add_sink,
    add_source,
    add_tables,
    add_verify_options,
    parse_spark_settings,
)
from headrace.errors import DefiniteError
from headrace.settings.pipe_keys import ColumnKeys
from headrace.stage_report import report_iteration, report_stages
from headrace.terminal_text import print_line

if TYPE_CHECKING:
    from headrace.verify.result import TableResult
    from headrace.verify.verifier import Sample


def add(subcommands: Subcommands) -> None:
    command = add_command(
        subcommands, verify, "verify", "compare every table with its copy; exit 1 if rows differ, 3 if the sink is only behind"
    )
    add_source(command, optional=True)
    add_sink(command, optional=True)
    add_tables(command)
    add_setting_flags(command, ColumnKeys)
    add_verify_options(command)
    add_process_options(command)


def verify(arguments: argparse.Namespace) -> int:
    """Compare every table by digests and, where those differ, by value; return 1 if rows differ, 3 if undecided."""
    from headrace.pipes.source_registry import DEBEZIUM, source_connector

    if not arguments.source and arguments.pipe:
        with report_stages(f"asking the process that runs {arguments.pipe}"):
            return verify_running(arguments)
    if not arguments.sink:
        raise DefiniteError("what is to be compared?", place="SOURCE SINK", hint="give SOURCE and SINK, or --pipe of a running process")
    source = source_connector(arguments.source)
    if source is DEBEZIUM:
        raise DefiniteError(
            "topics hold changes, and no rows to compare a copy with",
            place="the source of verify",
            hint="give the database that the connector reads: mysql://user:password@host:port/db",
        )
    if source.is_cdc_log:
        from headrace.model.table_selection import Selection
        from headrace.verify.scylla.command import verified

        return _print_results(arguments, verified(arguments, functools.partial(Selection.of_globs, arguments.tables, arguments.exclude)))
    return _print_results(arguments, _verified(arguments))


def _verified(arguments: argparse.Namespace) -> Iterator[TableResult]:
    from headrace.model.projection import Projection
    from headrace.model.setting_values import ZeroDates
    from headrace.model.table_selection import Selection
    from headrace.pipes.lifecycle.sink_factory import open_clickhouse_sink
    from headrace.settings.settings_file import read_settings
    from headrace.sources.mysql.server.connection import parse_mysql_url
    from headrace.verify.records import VerifyRecorder
    from headrace.verify.verifier import SparkUse, VerifyOptions, verify_tables
    from headrace.verify.view import choose_view
    from headrace.verify.watched_pipe import find_watermark, known_pipe, pipe_in_sink

    address = parse_mysql_url(arguments.source)
    with open_clickhouse_sink(arguments.sink) as named:
        known = known_pipe(arguments.state) if arguments.state else pipe_in_sink(named.sink.own_tables(), address, arguments.pipe)
        options = VerifyOptions(
            projection=known.carried(Projection(tuple(arguments.columns), tuple(arguments.exclude_columns))),
            zero_dates=ZeroDates(arguments.zero_dates or known.zero_dates),
            chunk_rows=arguments.chunk_rows,
            sample=_sample(arguments),
            repair=arguments.repair,
            spark=SparkUse(arguments.spark),
            master=arguments.master,
            spark_settings=parse_spark_settings(arguments.conf),
        )
        chosen = (
            known.selection
            if known.selection is not None and not arguments.tables
            else Selection.of_globs(arguments.tables, arguments.exclude, address.database)
        )
        given = read_settings(Path(arguments.settings)) if arguments.settings else None
        sink = replace(named.sink, options=known.choices if given is None else given.sink)
        options = replace(options, transforms=known.transforms if given is None else given.transforms)
        watermark = find_watermark(sink, address, arguments.pipe, known, arguments.wait)
        recorder = VerifyRecorder.begin(known.directory, sink.own_tables(), _partial(arguments))
        for result in verify_tables(address, sink, chosen, options, watermark=watermark, view=choose_view()):
            recorder.record(result)
            yield result


def _partial(arguments: argparse.Namespace) -> str:
    """Name the part of the tables that is compared; empty if all rows and columns of the pipe are."""
    parts = ([f"sample {arguments.sample}"] if arguments.sample else []) + (
        ["some columns"] if arguments.columns or arguments.exclude_columns else []
    )
    return ", ".join(parts)


def _print_results(arguments: argparse.Namespace, found: Iterator[TableResult]) -> int:
    from headrace.verify.result import Verdict
    from headrace.verify.view import excluded_text, overall, result_lines, results_json, summary

    results: list[TableResult] = []
    for result in report_iteration("opening source and sink", found):
        results.append(result)
        if not arguments.json:
            for line in result_lines(result):
                print_line(line)
    if arguments.json:
        print(results_json(results, seed=arguments.seed if arguments.sample else None))
    else:
        if arguments.sample:
            print_line(f"verify: a sample of {arguments.sample}, --seed {arguments.seed}")
        rows = sum(one.comparison.rows for one in results)
        print_line(f"verify: {len(results)} tables, {rows} rows, {summary(results)}{excluded_text(results)}")
    return {Verdict.EQUAL: OK, Verdict.DIFFERENT: DIFFERENT}.get(overall(results), UNDECIDED)


def _sample(arguments: argparse.Namespace) -> Sample | None:
    """Parse `1%`, `0.5%` or a number of rows; choose a random seed if none is given."""
    from headrace.verify.verifier import Sample

    text: str = arguments.sample
    if not text:
        return None
    if arguments.seed is None:
        arguments.seed = secrets.randbelow(1 << 31)
    try:
        share, rows = (float(text[:-1]) / 100, 0) if text.endswith("%") else (0.0, int(text))
    except ValueError:
        share = rows = 0
    if not (0 < share <= 1 or rows > 0):
        raise DefiniteError(f"{text!r} is no sample", hint="write --sample 1% or --sample 100000")
    return Sample(arguments.seed, share, rows)
