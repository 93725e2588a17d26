"""The command line: one function per verb."""

from __future__ import annotations

import argparse
import functools
import itertools
import logging
import math
import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from headrace.cql.address import is_cql, parse_cql_url
from headrace.errors import DefiniteError, HeadraceError
from headrace.model.projection import Projection
from headrace.model.schema import ZeroDates
from headrace.options import OF_A_LOG, OF_TOPICS, build_parser, check_heeded, chosen_by_flags
from headrace.passwords import hide_passwords
from headrace.pipes.endpoints import is_kafka, open_any_sink, open_sink
from headrace.sources.mysql.connection import parse_mysql_url
from headrace.sources.mysql.selection import Selection

if TYPE_CHECKING:
    from headrace.pipes.endpoints import NamedSink
    from headrace.pipes.running import RunnablePipe
    from headrace.pipes.settings import PipeSettings
    from headrace.pipes.settings_file import Chosen
    from headrace.pipes.verification import Sample
    from headrace.pipes.verifying.result import TableResult
    from headrace.sinks.base import Sink

OK, DIFFERENT, FAILED, UNDECIDED = 0, 1, 2, 3


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb; 0 well, 1 differences found, 2 an error that is explained, 3 a comparison that could not decide."""
    if argv is None:
        hide_passwords()
    parser = build_parser(_VERBS)
    arguments = parser.parse_args(argv)
    _set_up_log(arguments.verbose)
    try:
        return int(arguments.run(arguments))
    except HeadraceError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return 130


def replicate(arguments: argparse.Namespace) -> int:
    """Snapshot, then follow the changes."""
    from headrace.pipes.lifeline import held_line
    from headrace.pipes.offline import OfflinePipe
    from headrace.pipes.pipe import Pipe
    from headrace.pipes.progress import choose_view
    from headrace.pipes.remembered import chosen_for
    from headrace.pipes.settings import PipeSettings, SnapshotMode
    from headrace.pipes.settings_file import DEBEZIUM, REPLAY, SCYLLA
    from headrace.sources.mysql.offline import parse_directory
    from headrace.sources.mysql.origin import Limits

    offline, topics, cells = arguments.source.startswith("binlog:"), is_kafka(arguments.source), is_cql(arguments.source)
    address = None if offline or topics or cells else parse_mysql_url(arguments.source)
    database = parse_cql_url(arguments.source).keyspace if cells else address.database if address is not None else ""
    chosen = chosen_for(Path(arguments.state), arguments.settings, chosen_by_flags(arguments))
    if topics:
        hint = "leave it out: --start says where topics are begun, --max-offsets how large a batch is, and the connector what it takes over"
        check_heeded(arguments, OF_A_LOG, "is about a server's log, and the source is in Kafka", hint)
    else:
        check_heeded(arguments, OF_TOPICS, "is about a source in Kafka", "leave it out, or give kafka://host:port as the source")
        chosen.check_sections((DEBEZIUM,), "this is about Debezium's topics, and the source is a server's log")
    if not cells:
        chosen.check_sections((SCYLLA, REPLAY), "this is about ScyllaDB's log, and the source is another one")
    settings = PipeSettings(
        selection=_selected(arguments) if topics else _selection(arguments, database),
        projection=Projection(tuple(arguments.columns), tuple(arguments.exclude_columns)),
        state=Path(arguments.state),
        name=arguments.name,
        once=arguments.once,
        start_at=arguments.start_at,
        snapshot=SnapshotMode.NONE if arguments.start_at else SnapshotMode(arguments.snapshot),
        limits=Limits(arguments.flush_bytes, arguments.flush_rows, arguments.flush_seconds),
        relay_bytes=arguments.relay_bytes,
        chunk_rows=arguments.chunk_rows,
        zero_dates=ZeroDates(arguments.zero_dates),
        patience_s=arguments.patience or math.inf,
        master=arguments.master,
        spark_log=arguments.spark_log,
        schema_changes=chosen.schema_changes,
        choices=chosen.plain,
    )
    if cells:
        return _replicate_log(arguments, chosen, settings)
    with held_line(arguments.keeper_fd) as line, open_any_sink(arguments.sink, chosen) as named:
        parts = (named.sink, named.name, settings, choose_view())
        pipe: RunnablePipe
        if topics:
            pipe = _topic_pipe(arguments, chosen, named, settings)
        else:
            pipe = OfflinePipe(parse_directory(arguments.source), *parts) if address is None else Pipe(address, *parts)
        pipe.on_begun, line.is_in_vain = line.begun, named.is_lost
        _stop_on_signals(pipe.stop)
        pipe.run()
    return OK


def _replicate_log(arguments: argparse.Namespace, chosen: Chosen, settings: PipeSettings) -> int:
    """A pipe from ScyllaDB's CDC log."""
    from headrace.pipes.progress import choose_view
    from headrace.pipes.scylla.choosing import check_chosen
    from headrace.pipes.scylla.pipe import ScyllaPipe
    from headrace.pipes.scylla.sinks import open_log_target

    check_chosen(settings, chosen)
    with open_log_target(arguments.sink, chosen, settings.state) as target:
        pipe = ScyllaPipe(parse_cql_url(arguments.source), chosen.scylla, target, settings, choose_view())
        _stop_on_signals(pipe.stop)
        pipe.run()
    return OK


def _topic_pipe(arguments: argparse.Namespace, chosen: Chosen, named: NamedSink[Sink], settings: PipeSettings) -> RunnablePipe:
    """A pipe from Debezium's topics."""
    from headrace.kafka.address import parse_kafka_url
    from headrace.pipes.debezium.pipe import DebeziumPipe
    from headrace.pipes.debezium.settings import TopicSettings, parse_start, topic_pattern
    from headrace.pipes.progress import choose_view
    from headrace.sinks.clickhouse.sink import ClickHouseSink

    if not isinstance(named.sink, ClickHouseSink):
        raise DefiniteError("topics of Debezium's are read into ClickHouse only", place=named.name, hint="give a ClickHouse sink")
    address = parse_kafka_url(arguments.source)
    topics = TopicSettings(
        topic_pattern(arguments.topics, arguments.topic_pattern, address.topic),
        parse_start(arguments.start),
        arguments.max_offsets,
        arguments.min_partitions,
        arguments.kafka_jars,
        chosen.debezium,
    )
    return DebeziumPipe(address, topics, named.sink, named.name, settings, choose_view())


def verify(arguments: argparse.Namespace) -> int:
    """Compare every table by digests and, where those differ, by value; 1 if rows differ, 3 if they may only be behind."""
    if is_kafka(arguments.source):
        raise DefiniteError(
            "topics hold changes, and no rows to compare a copy with",
            place="the source of verify",
            hint="give the database that the connector reads: mysql://user:password@host:port/db",
        )
    if is_cql(arguments.source):
        from headrace.pipes.scylla.verify_command import verified

        return _tell_results(arguments, verified(arguments, functools.partial(_selection, arguments)))
    return _tell_results(arguments, _verified(arguments))


def _verified(arguments: argparse.Namespace) -> Iterator[TableResult]:
    from headrace.pipes.settings_file import read_settings
    from headrace.pipes.verification import SparkUse, VerifyOptions, verify_tables
    from headrace.pipes.verifying.pipes import find_watermark, known_pipe, pipe_in_sink
    from headrace.pipes.verifying.view import choose_view

    address = parse_mysql_url(arguments.source)
    with open_sink(arguments.sink) as named:
        known = known_pipe(arguments.state) if arguments.state else pipe_in_sink(named.sink.own_tables(), address, arguments.pipe)
        options = VerifyOptions(
            projection=known.carried(Projection(tuple(arguments.columns), tuple(arguments.exclude_columns))),
            zero_dates=ZeroDates(arguments.zero_dates or known.zero_dates),
            chunk_rows=arguments.chunk_rows,
            sample=_sample(arguments),
            repair=arguments.repair,
            spark=SparkUse(arguments.spark),
            master=arguments.master,
        )
        chosen = known.selection if known.selection is not None and not arguments.tables else _selection(arguments, address.database)
        choices = read_settings(Path(arguments.settings)).sink if arguments.settings else known.choices
        sink = replace(named.sink, choices=choices)
        watermark = find_watermark(sink, address, arguments.pipe, known, arguments.wait)
        yield from verify_tables(address, sink, chosen, options, watermark=watermark, view=choose_view())


def _tell_results(arguments: argparse.Namespace, found: Iterator[TableResult]) -> int:
    from headrace.pipes.verifying.result import Verdict
    from headrace.pipes.verifying.view import overall, result_lines, results_json

    results: list[TableResult] = []
    for result in found:
        results.append(result)
        if not arguments.json:
            print("\n".join(result_lines(result)), flush=True)
    if arguments.json:
        print(results_json(results, seed=arguments.seed if arguments.sample else None))
    else:
        if arguments.sample:
            print(f"verify: a sample of {arguments.sample}, --seed {arguments.seed}")
        rows, different = sum(one.comparison.rows for one in results), sum(one.comparison.total for one in results)
        print(f"verify: {len(results)} tables, {rows} rows, {different} differences")
    return {Verdict.EQUAL: OK, Verdict.DIFFERENT: DIFFERENT}.get(overall(results), UNDECIDED)


def _sample(arguments: argparse.Namespace) -> Sample | None:
    """`1%`, `0.5%` or a number of rows. A seed that was not given is drawn."""
    from headrace.pipes.verification import Sample

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


def check(arguments: argparse.Namespace) -> int:
    """Look at every setting and privilege that matters; 2 if replication would be wrong or impossible."""
    from headrace.pipes.checkup import check_cluster, check_server
    from headrace.pipes.checkup_view import findings_json, print_findings
    from headrace.sources.findings import Level

    if is_cql(arguments.source):
        clustered = parse_cql_url(arguments.source)
        chosen = _selection(arguments, clustered.keyspace) if arguments.tables or clustered.keyspace else Selection(("*",))
        shown, findings = str(clustered), check_cluster(clustered, chosen, arguments.set)
    else:
        address = parse_mysql_url(arguments.source)
        chosen = _selection(arguments, address.database) if arguments.tables or address.database else Selection(("*",))
        shown, findings = str(address), check_server(address, chosen)
    if arguments.json:
        print(findings_json(shown, findings))
    else:
        print_findings(findings)
    return FAILED if any(finding.level is Level.ERROR for finding in findings) else OK


def resync(arguments: argparse.Namespace) -> int:
    """Ask the pipe of a state directory to read tables again."""
    from headrace.pipes.requests import ask_for_resync
    from headrace.pipes.state import StateDirectory

    directory = StateDirectory(Path(arguments.state), make=False)
    state = directory.load()
    if state is None:
        raise DefiniteError("there is no pipe here", place=str(directory.path), hint="give the --state of a pipe that was started before")
    unclear = next((table for table in arguments.tables if "." not in table), None)
    if unclear is not None:
        raise DefiniteError(f"{unclear!r} has no database", hint="write database.table")
    ask_for_resync(directory, tuple(arguments.tables))
    when = "the running pipe takes it up in a moment" if directory.is_owned else "no pipe runs now; it is done at the next start"
    print(f"resync: asked for {', '.join(arguments.tables)}; {when}")
    return OK


def ddl(arguments: argparse.Namespace) -> int:
    """Show what a statement of the source would do to the sink."""
    from headrace.pipes.rehearsal_view import Asked, rehearse
    from headrace.pipes.settings_file import Chosen, read_settings

    chosen = read_settings(Path(arguments.settings)) if arguments.settings else Chosen()
    for flag in chosen_by_flags(arguments):
        chosen = flag.over(chosen)
    asked = Asked(
        arguments.statement,
        arguments.source,
        tuple(arguments.schema),
        arguments.state,
        arguments.sink,
        arguments.database,
        arguments.server_version,
        chosen,
    )
    for line in rehearse(asked):
        print(line)
    return OK


def retry(arguments: argparse.Namespace) -> int:
    """Write rows again that a target table refused; 1 if some still wait."""
    from headrace.pipes.retrials import retry_rows
    from headrace.pipes.settings_file import Chosen, read_settings
    from headrace.sinks.clickhouse.dead_letters import waiting

    given: Chosen | None = read_settings(Path(arguments.settings)) if arguments.settings else None
    for flag in chosen_by_flags(arguments):
        given = flag.over(given or Chosen())
    chosen = {"pipe": arguments.pipe, "table": arguments.table, "ids": tuple(arguments.id)}
    with open_sink(arguments.sink) as named:
        if arguments.list:
            letters = waiting(named.sink.own_tables(), **chosen)
            for letter in letters:
                print(f"{letter.id} {letter.table} {letter.fields['operation']} {letter.key}: {letter.fields['reason']}")
            print(f"retry: {len(letters)} rows wait")
            return OK
        written = left = 0
        for outcome in retry_rows(named.sink, choices=None if given is None else given.sink, **chosen):
            written, left = written + outcome.written, left + (not outcome.written)
            said = "written" if outcome.written else f"{'still refused' if outcome.waits else 'left out'}: {outcome.reason}"
            print(f"{outcome.letter.id} {outcome.letter.table} {outcome.letter.key}: {said}", flush=True)
    print(f"retry: {written} rows written, {left} not")
    return DIFFERENT if left else OK


def tail(arguments: argparse.Namespace) -> int:
    """Print what is in a topic, message by message, or in ScyllaDB's log, row by row."""
    if is_cql(arguments.topic):
        return _tail_log(arguments)
    from headrace.kafka.consumer import Reading
    from headrace.kafka.tailing import json_line, tail, text_line
    from headrace.kafka.topics import EARLIEST, LATEST

    start = arguments.offset or (EARLIEST if arguments.from_beginning or arguments.once else LATEST)
    line = json_line if arguments.json else text_line
    stop = threading.Event()
    _stop_on_signals(stop.set)
    try:
        for found in tail(
            Reading(arguments.topic, registry=arguments.registry, start=start), once=arguments.once, limit=arguments.limit, stop=stop
        ):
            print(line(found), flush=True)
    except BrokenPipeError:
        # Whoever read our output has seen enough; nothing is left to write at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return OK


def _tail_log(arguments: argparse.Namespace) -> int:
    """Print what is in the CDC log of a cluster's tables."""
    from headrace.pipes.scylla.tailing import Tail, tail_choices, text_line

    for name, value in (("--offset", arguments.offset), ("--registry", arguments.registry)):
        if value:
            raise DefiniteError("this is about topics of Kafka", place=name, hint="leave it out")
    address = parse_cql_url(arguments.topic)
    looking = Tail(
        address, tail_choices(arguments.set), _selection(arguments, address.keyspace), oldest=arguments.from_beginning, once=arguments.once
    )
    stop = threading.Event()
    _stop_on_signals(stop.set)
    try:
        for document in itertools.islice(looking.documents(stop), arguments.limit):
            print(document.decode() if arguments.json else text_line(document), flush=True)
    except BrokenPipeError:
        # Whoever read our output has seen enough; nothing is left to write at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return OK


def sql(arguments: argparse.Namespace) -> int:
    """Print a query's result as a table, or in the format that the query names."""
    from headrace.pipes.materialized.answers import answer
    from headrace.sinks.clickhouse.reader import names_format

    query = sys.stdin.read() if arguments.query == "-" else arguments.query
    answered = answer(arguments.sink, query)
    if answered is None:
        with open_sink(arguments.sink) as named:
            if names_format(query):
                print(named.sink.reader().text(query), end="")
                return OK
            answered = named.sink.reader().query(query)
    names, rows = answered
    if not names:
        return OK
    table = Table(*names)
    for row in rows:
        table.add_row(*("NULL" if value is None else str(value) for value in row))
    # Piped output is not cut to a terminal's width.
    Console(width=None if sys.stdout.isatty() else 10_000).print(table, markup=False)
    return OK


def settings(arguments: argparse.Namespace) -> int:
    """Print every setting of the target tables, with what it can be and what it means."""
    from headrace.pipes.settings_page import PAGES, TABLES_PAGE, markdown, setting_rows

    if arguments.markdown:
        print("\n".join(map(markdown, (TABLES_PAGE, *sorted(set(PAGES.values()))))), end="")
        return OK
    table = Table("section", "setting", "values", "default", "meaning")
    for row in setting_rows():
        table.add_row(row.section, row.name, row.values.replace("`", ""), row.default, row.text)
    Console(width=None if sys.stdout.isatty() else 200).print(table, markup=False)
    return OK


def serve(arguments: argparse.Namespace) -> int:
    """Own an embedded ClickHouse and speak its HTTP interface."""
    from headrace.embedded.process import PASSWORD_VARIABLE
    from headrace.embedded.server import serve as run_server

    def ready(port: int) -> None:
        print(f"ClickHouse at http://{arguments.host}:{port}/ on {arguments.path}", flush=True)

    password = os.environ.get(PASSWORD_VARIABLE, "")
    run_server(Path(arguments.path), arguments.host, arguments.port, arguments.user, password, ready)
    return OK


def scylla_log_schema(arguments: argparse.Namespace) -> int:
    """Print the definitions of log tables."""
    from headrace.pipes.scylla.commands import log_schema

    print(log_schema(arguments.source, arguments.tables, cassandra=arguments.cassandra))
    return OK


def demo(arguments: argparse.Namespace) -> int:
    """A live database, replicated and verified."""
    from headrace.demo.run import run_demo

    return run_demo(live=arguments.live, seconds=arguments.seconds, directory=arguments.directory)


def _stop_on_signals(stop: Callable[[], None]) -> None:
    """The first signal ends in order, after the batch; a second one ends at once, which the state survives like any crash."""
    asked = False

    def on_signal(*_: object) -> None:
        nonlocal asked
        if asked:
            os._exit(130)
        asked = True
        stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)


def _selection(arguments: argparse.Namespace, database: str) -> Selection:
    if not arguments.tables and not database:
        raise DefiniteError("no tables are named", hint="give a database in the source's address, or --tables 'db.*'")
    return Selection(_globs(arguments.tables or ["*"], database), _globs(arguments.exclude, database))


def _selected(arguments: argparse.Namespace) -> Selection:
    """Tables of topics: all, unless some are named."""
    return Selection(_globs(arguments.tables or ["*.*"], ""), _globs(arguments.exclude, ""))


def _globs(globs: list[str], database: str) -> tuple[str, ...]:
    """Globs over `database.table`; one without a dot is meant within the address's database."""
    if any("." not in glob for glob in globs) and not database:
        raise DefiniteError("a table glob without a database needs one in the source's address", hint="write --tables 'db.table'")
    return tuple(glob if "." in glob else f"{database}.{glob}" for glob in globs)


def _set_up_log(verbose: bool) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    root = logging.getLogger("headrace")
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG if verbose else logging.INFO)
    root.propagate = False


_VERBS = {
    "replicate": replicate,
    "verify": verify,
    "resync": resync,
    "ddl": ddl,
    "retry": retry,
    "check": check,
    "tail": tail,
    "sql": sql,
    "settings": settings,
    "serve": serve,
    "demo": demo,
    "scylla log-schema": scylla_log_schema,
}


if __name__ == "__main__":
    sys.exit(main())
