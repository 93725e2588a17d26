"""What one statement leads to in the sink, by what it did to the source and by the user's policy.

Invariant: a decision does nothing; it looks at the state and at the target tables and says what is to be done, all of it or, where one part
of it must not or cannot be done, nothing: a definite error that names the statement and the way on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from headrace.errors import DefiniteError
from headrace.model.alter_effects import Alteration, Fate, Kept, alteration
from headrace.model.schema import Column, TableName, TableSchema
from headrace.model.schema_change import (
    AddColumn,
    ChangeIndexes,
    ChangeOptions,
    ChangePrimaryKey,
    CreateTable,
    DropColumn,
    DropTable,
    ModifyColumn,
    RenameColumn,
    SchemaCatalog,
    tables_of,
)
from headrace.model.table_selection import Selection
from headrace.pipes.lifecycle.schema_change_intents import Intent, IntentExecutor
from headrace.pipes.state.pipe_state import TableState
from headrace.pipes.state.resync_requests import pending_requests
from headrace.retry import retrying
from headrace.settings.schema_policy import ChangeKind, Policy, SchemaPolicy
from headrace.sinks.schema_changes import DdlPlan, LedgerEntry, SchemaApplier, TargetNameTaken, renamed_from
from headrace.sources.mysql.schema.alter_effects import effect_of
from headrace.sources.mysql.schema.schema_history import DdlOutcome
from headrace.sources.mysql.server.position import BinlogPosition, file_number

_ALTERATIONS = (AddColumn, DropColumn, RenameColumn, ModifyColumn, ChangePrimaryKey, ChangeIndexes, ChangeOptions)
_OTHER = "definition"
"""What is in the ledger as a kind where a change is of none that knows a policy: comments, the order of columns, lost definitions."""
APPLIED, IGNORED, KEPT, READ_AGAIN = "applied", "ignored", "kept", "read again"


@dataclass(slots=True)
class SchemaChangePlanner:
    """About one statement."""

    followed: DdlOutcome
    after: SchemaCatalog
    """All tables as they are after the statement."""
    executor: IntentExecutor
    policy: SchemaPolicy
    schema_applier: Callable[[], SchemaApplier]
    notes: list[str] = field(default_factory=list)
    """For people: what becomes of which table."""
    _intent: Intent = field(init=False)
    _altered: dict[TableName, TableState] = field(default_factory=dict)
    """Tables as they are after the statement's alterations, by the name they had before it."""
    _moved: set[TableName] = field(default_factory=set)
    """Names whose target goes to another name."""
    _vacated: set[TableName] = field(default_factory=set)
    """Names whose target is dropped or renamed."""

    def __post_init__(self) -> None:
        self._intent = Intent(self.followed.position)

    def intent(self) -> Intent:
        """What is to be done."""
        followed = self.followed
        made = {change.schema.name for change in followed.changes if isinstance(change, CreateTable)}
        for name in sorted(followed.emptied - made):
            self._truncate(name)
        for name in self._alteration_subjects():
            self._alter(name)
        self._rename()
        for name in sorted((followed.gone | (followed.emptied & made)) - self._moved):
            self._leave(name)
        for name in sorted(made - followed.arrived - followed.recapture):
            self._create(name)
        for name in sorted(followed.arrived | followed.disturbed | followed.recapture):
            self._read_again(name, "rows of it are not in the log")
        self._check_reread()
        return self._intent

    # -- what is known

    @property
    def _version(self) -> int:
        return self.followed.position.version

    @property
    def _tag(self) -> str:
        position = self.followed.position
        return f"{file_number(position.file):06d}_{position.offset}"

    def _known(self, name: TableName) -> TableState | None:
        return self.executor.context.state.tables.get(name) if self.executor.is_news(name, self.followed.position) else None

    def _is_settled(self, name: TableName) -> bool:
        """Whether the target holds the table's rows: it is neither being read nor waiting for that."""
        snapshot = self.executor.snapshots.tables.get(str(name))
        return name not in self.executor.context.state.waiting and not (snapshot is not None and snapshot.pending)

    def _was_read_before(self, name: TableName) -> bool:
        """Whether all rows of the table's snapshot were read before the statement: what is altered holds no others."""
        snapshot = self.executor.snapshots.tables.get(str(name))
        return self._is_settled(name) and (
            snapshot is None
            # The position of a statement is its end: rows that were read there include its effect.
            or all(BinlogPosition.from_json(place) < self.followed.position for place in snapshot.read_at)
        )

    def _is_owed(self, name: TableName) -> bool:
        """Whether the table's rows are still to be read beside its changes, by a request that names it as it was called before."""
        executor = self.executor
        return executor.context.targets.append_only and any(
            Selection(one.tables)(name) for one in pending_requests(executor.context.directory)
        )

    def _ask(self, plan: Callable[[SchemaApplier], DdlPlan]) -> DdlPlan:
        """What the sink says to a plan, when it can be reached."""
        return retrying(lambda: plan(self.schema_applier()))

    def _renewed(self, table: TableState, **changes: object) -> TableState:
        """The table as of the statement: all its changes before it are in the sink."""
        here = self.followed.position.to_json()
        changed: TableState = replace(table, **{"captured_at": here, "rows_from": here, **changes})  # type: ignore[arg-type]
        return changed

    # -- whole tables

    def _truncate(self, name: TableName) -> None:
        table = self._known(name)
        is_waiting = name in self.executor.context.state.waiting
        if table is None or (is_waiting and self.policy.of(ChangeKind.TRUNCATE_TABLE) is not Policy.KEEP):
            return
        kind, schema = ChangeKind.TRUNCATE_TABLE, self.executor.shown(table)
        policy = self._policy(kind, name)
        if policy is Policy.IGNORE:
            self._intent.tables[name] = self._renewed(table, rows_from=table.rows_from)
            self._enter(name, [kind], DdlPlan(), IGNORED)
        elif is_waiting:
            # The table is made anew when it is read again.
            self._take(name, [kind], self._keeping(schema, "truncated", again=False), KEPT)
        elif policy is Policy.KEEP and not self._is_settled(name):
            self._intent.tables[name] = self._renewed(table, rows_from=table.rows_from)
            self._intent.prepared.add(name)
            # Rows that were read before the statement may be written after it.
            self._intent.swept.append(schema)
            self._take(name, [kind], self._keeping(schema, "truncated", again=True), KEPT)
        elif not self._is_settled(name):
            self._intent.swept.append(schema)
            self._intent.tables[name] = self._renewed(table, rows_from=table.rows_from)
            # Where nothing is taken away, those who read it are told.
            told = (
                self._ask(lambda sink: sink.plan_emptying(schema, self._version))
                if self.executor.context.targets.append_only
                else DdlPlan()
            )
            self._intent.steps += told.steps
            self._enter(name, [kind], told, APPLIED, "its rows were taken away by version, for it is being read")
        else:
            keeps = policy is Policy.KEEP
            if keeps:
                found = self._keeping(schema, "truncated", again=True)
            else:
                found = self._ask(lambda sink: sink.plan_emptying(schema, self._version))
            self._intent.tables[name] = self._renewed(table)
            if keeps:
                self._intent.prepared.add(name)
            elif not found.steps:
                # A history keeps what was; it is told of each row that it went.
                self._intent.swept.append(schema)
            self._take(name, [kind], found, KEPT if keeps or not found.steps else APPLIED)

    def _leave(self, name: TableName) -> None:
        """No table of that name, or another one."""
        table = self._known(name)
        if table is None:
            if name in self.executor.context.state.waiting | self.executor.context.state.ignored:
                self._intent.gone.add(name)
            return
        kind, schema = ChangeKind.DROP_TABLE, self.executor.shown(table)
        policy = self._policy(kind, name)
        self._intent.gone.add(name)
        if policy is Policy.IGNORE:
            self._enter(name, [kind], DdlPlan(), IGNORED, "the target keeps its rows")
        elif policy is Policy.KEEP:
            # Also of a table that was being read, or was to be read again: what was read of it so far is kept.
            self._vacated.add(name)
            self._take(name, [kind], self._keeping(schema, "dropped", again=False), KEPT)
        elif self.executor.context.targets.append_only and name in self.executor.context.state.waiting:
            self._enter(name, [kind], DdlPlan(), KEPT, "it was to be read again; the target stays as it was")
        elif self.executor.context.targets.append_only and not self._is_settled(name):
            self._intent.swept.append(schema)
            self._enter(name, [kind], DdlPlan(), APPLIED, "its rows were taken away by version, for it was being read")
        else:
            self._remove(name, schema)

    def _remove(self, name: TableName, schema: TableSchema) -> None:
        """The target goes, also while its snapshot is read: a chunk that is written later finds no table, and is left out."""
        kind = ChangeKind.DROP_TABLE
        try:
            found = self._ask(lambda sink: sink.plan_removal(schema))
        except DefiniteError as error:
            if name not in self.executor.context.state.waiting:
                raise
            # The snapshot would have refused a target that Headrace did not create and that does not fit. It holds none of the rows.
            self._enter(name, [kind], DdlPlan(), KEPT, f"it was to be read again; the target stays as it was: {error.message}")
            return
        if found.vacates:
            self._vacated.add(name)
        elif name not in self.executor.context.state.waiting and not self._is_settled(name):
            # Rows that were read before the statement may be written after it.
            self._intent.swept.append(schema)
        self._take(name, [kind], found, APPLIED if found.steps else KEPT)

    def _create(self, name: TableName) -> None:
        schema = self.after.tables.get(name)
        if schema is None or not self.executor.context.is_selected(name) or not self.executor.is_news(name, self.followed.position):
            return
        kind = ChangeKind.CREATE_TABLE
        if self._policy(kind, name) is Policy.IGNORE:
            self._intent.ignored.add(name)
            self._enter(name, [kind], DdlPlan(), IGNORED)
            return
        if not self._is_settled(name):
            # Chunks of an earlier table of this name may still be read: they would be read from this one, by the definition of that one.
            self._read_again(name, "it was made anew while it was being read")
            return
        with self._settled_by_resync(name):
            self.executor.context.schemas.check_new(schema)
            shown = self.executor.context.schemas(schema, ())
        self._check_apart(shown)
        here = self.followed.position.to_json()
        number = self.executor.snapshots.next_number(name)
        keeps = self.policy.of(ChangeKind.DROP_TABLE) is Policy.KEEP
        try:
            # Where the old target is gone by then, it does not matter what it is now.
            found = DdlPlan() if name in self._vacated else self._ask(lambda sink: sink.plan_creation(shown))
        except DefiniteError as error:
            if keeps and not self.executor.context.targets.append_only:
                found = self._keeping(shown, "dropped", again=False)
                self._vacated.add(name)
            elif self._makes_anew:
                self._read_again(name, f"a target for an earlier table of this name is there: {error.message}")
                return
            else:
                raise
        self._intent.gone.discard(name)
        self._intent.tables[name] = TableState(schema, here, here, number)
        self._intent.prepared.add(name)
        if keeps and not found.steps and name not in self._vacated and self._holds_rows(shown):
            found = self._keeping(shown, "dropped", again=True)
        elif not found.steps and self.policy.of(ChangeKind.DROP_TABLE) is not Policy.IGNORE:
            # A copy of an earlier table of this name may be there.
            self._intent.swept.append(shown)
        self._take(name, [kind], found, APPLIED)

    def _keeping(self, schema: TableSchema, why: str, *, again: bool) -> DdlPlan:
        """Renames the target, whatever it is, unless a stranger made it for other columns."""
        return self._ask(lambda sink: sink.plan_keeping(schema, f"{why}_{self._tag}", again=again))

    def _holds_rows(self, schema: TableSchema) -> bool:
        targets = self.executor.context.targets
        return not targets.append_only and retrying(lambda: targets.holds_rows(schema))

    @property
    def _makes_anew(self) -> bool:
        """Whether a target that is in the way is settled by a reading: an earlier table of its name went while it was being read, and its
        target stayed. One of ours is then made anew; a stranger's is refused."""
        return self.executor.request_resync is not None and self.policy.of(ChangeKind.DROP_TABLE) is Policy.APPLY

    def _check_apart(self, made: TableSchema) -> None:
        """A new table's target must not be another table's: it would be swept, and both would be written to it."""
        tables = {**self.executor.context.state.tables, **self._intent.tables}
        others = self._intent.gone | self.executor.context.state.waiting | {made.name}
        left = [table for name, table in tables.items() if name not in others]
        self.executor.context.targets.check_target_conflicts([*map(self.executor.shown, left), made])

    def _rename(self) -> None:
        moved = {new: old for new, old in self.followed.moved.items() if self.executor.is_news(new, self.followed.position)}
        tables = {new: self._altered.get(old) or self._known(old) for new, old in moved.items()}
        kind = ChangeKind.RENAME_TABLE
        policies = {self._policy(kind, new) for new in moved}
        if not moved:
            return
        # As when a table is created: chunks of an earlier table of the new name may still be read.
        ready = all(map(self._is_settled, moved.keys() - moved.values())) and all(
            table is not None and self._was_read_before(moved[new]) and not self._is_owed(moved[new]) for new, table in tables.items()
        )
        if not ready or Policy.RESYNC in policies:
            found = DdlPlan((), "it is not in the sink yet")
        elif not all(self.executor.context.schemas.is_same(old, new) for new, old in moved.items()):
            found = DdlPlan((), "other transforms hold for its new name")
        else:
            found = self._plan_moves(moved, tables)
        if found.reread or self._intent.reread & moved.keys():
            for new in moved:
                self._read_again(new, found.reread)
            return
        self._intent.steps += found.steps
        for new, table in tables.items():
            assert table is not None
            number = self.executor.snapshots.next_number(new)
            self._intent.tables[new] = self._renewed(table, schema=self.after.tables[new], snapshot=number)
            self._intent.prepared.add(new)
            self._enter(new, [kind], found, APPLIED, renamed_from(str(moved[new])))
        self._moved |= set(moved.values())
        self._intent.gone |= set(moved.values()) - self.after.tables.keys()
        self._intent.gone -= set(moved)

    def _plan_moves(self, moved: dict[TableName, TableName], tables: dict[TableName, TableState | None]) -> DdlPlan:
        pairs = []
        for new, table in tables.items():
            before = self._known(moved[new])
            assert table is not None
            assert before is not None
            pairs.append((self.executor.shown(before), self.executor.context.schemas(self.after.tables[new], table.hidden)))
        try:
            return self._ask(lambda sink: sink.plan_moves(pairs))
        except TargetNameTaken as error:
            # The next snapshot replaces the target of a waiting table. The same holds for a table whose new name was read later.
            left = {change.table for change in self.followed.changes if isinstance(change, DropTable)}
            if not self._makes_anew and not moved.keys() & (self.executor.context.state.waiting | left):
                raise
            return DdlPlan((), f"a target for an earlier table of its new name is there: {error.message}")

    # -- one table's definition

    def _alteration_subjects(self) -> list[TableName]:
        return sorted({change.table for change in self.followed.changes if isinstance(change, _ALTERATIONS)})

    def _alter(self, name: TableName) -> None:
        final = next((new for new, old in self.followed.moved.items() if old == name), name)
        table, schema = self._known(name), self.after.tables.get(final)
        if table is None or schema is None or name in self.executor.context.state.waiting or not self.executor.context.is_selected(final):
            return
        changes = [change for change in self.followed.changes if isinstance(change, _ALTERATIONS) and name in tables_of(change)]
        session = self.followed.query.session
        told = alteration(table.schema, replace(schema, name=name), changes, lambda change: effect_of(change, session))
        hidden = self._hidden(table, told)
        schemas = self.executor.context.schemas
        left = schemas.named(self._left(told), table.schema, table.hidden)
        seen = replace(self._shown(told, table.hidden, hidden), left=left)
        fresh = {fate.column.name for fate in told.fates if fate.origin is None}
        kinds = _kinds_of(self._shown(told, table.hidden, tuple(set(hidden) - fresh)))
        altered = self._renewed(table, schema=schema, hidden=hidden)
        self._altered[name] = altered
        if final == name:
            self._intent.tables[name] = altered
        policies = {self._policy(kind, name) for kind in kinds}
        if not self._was_read_before(name):
            # Rows of it were read, or are being read, after the statement and by the old definition.
            if kinds:
                self._read_again(final, "it was altered while it was being read", kinds)
            elif final == name:
                self._intent.tables[name] = replace(table, schema=schema, hidden=hidden)
            return
        found = self._ask(lambda sink: sink.plan_alteration(_without_left(seen), self._version))
        if Policy.RESYNC in policies:
            found = replace(found, reread=found.reread or "it was chosen to read it again")
        found = replace(found, reread=found.reread or schemas.reread_reason(told, table.hidden, hidden))
        if found.prepared and final == name:
            self._intent.prepared.add(name)
        if not kinds and not found.steps and not found.reread:
            return
        self._intent.steps += found.steps
        if found.reread:
            self._read_again(final, found.reread, kinds, found)
        else:
            outcome = IGNORED if policies == {Policy.IGNORE} else APPLIED
            self._enter(name, kinds, found, outcome, f"ignored: {', '.join(sorted(left))}" if left and outcome is APPLIED else "")

    def _shown(self, told: Alteration, hidden: tuple[str, ...], hidden_after: tuple[str, ...]) -> Alteration:
        """The alteration as the sink sees it; transforms that no longer fit the table halt here."""
        with self._settled_by_resync(told.before.name):
            return self.executor.context.schemas.alteration(told, hidden, hidden_after)

    @contextmanager
    def _settled_by_resync(self, name: TableName) -> Iterator[None]:
        """What does not fit the transforms is settled by other settings, and the table read again by them."""
        try:
            yield
        except DefiniteError as error:
            again = f"headrace resync {name} --state {self.executor.context.directory.path}"
            hint = f"{error.hint}; change the settings, have the table read again by them ({again}), then start again"
            place = f"{error.place}, at {self.followed.position}: {self.followed.query.statement}"
            raise DefiniteError(error.message, place=place, hint=hint) from error

    def _hidden(self, table: TableState, told: Alteration) -> tuple[str, ...]:
        """The columns that are not carried from now on."""
        ignores = self.policy.of(ChangeKind.ADD_COLUMN) is Policy.IGNORE
        return tuple(fate.column.name for fate in told.fates if (ignores if fate.origin is None else fate.origin in table.hidden))

    def _left(self, told: Alteration) -> frozenset[str]:
        """The columns that the target shall leave as they are."""
        dropped = told.dropped if self.policy.of(ChangeKind.DROP_COLUMN) is Policy.IGNORE else ()
        modified: Iterable[str] = ()
        if self.policy.of(ChangeKind.MODIFY_COLUMN) is Policy.IGNORE:
            modified = (fate.origin for fate in told.fates if fate.origin is not None and _is_modified(told.before, fate))
        return frozenset((*dropped, *modified))

    # -- what comes out

    def _policy(self, kind: ChangeKind, name: TableName) -> Policy:
        policy = self.policy.of(kind)
        if policy is Policy.HALT:
            hint = f"start again with --schema-changes {kind}=apply to have it done"
            if self.executor.request_resync is not None and name in self.after.tables:
                hint += f"; or to read the table again as it is now: headrace resync {name} --state {self.executor.context.directory.path}"
            raise DefiniteError(
                f"table {name} was changed, and {kind} is set to halt: {self.followed.query.statement}",
                place=str(self.followed.position),
                hint=hint,
            )
        return policy

    def _take(self, name: TableName, kinds: list[ChangeKind], found: DdlPlan, outcome: str) -> None:
        self._intent.steps += found.steps
        self._enter(name, kinds, found, outcome)

    def _read_again(self, name: TableName, why: str, kinds: Iterable[ChangeKind] = (), found: DdlPlan | None = None) -> None:
        waiting = self.executor.context.state.waiting | self._intent.reread | self._intent.beside
        if name in waiting or not self.executor.is_news(name, self.followed.position):
            return
        if self.executor.context.targets.append_only and name in self.after.tables:
            self._go_on_beside(name)
        else:
            self._intent.reread.add(name)
        self._enter(name, kinds, found or DdlPlan(), READ_AGAIN, why)

    def _go_on_beside(self, name: TableName) -> None:
        """Its changes from here on are sent like any other table's; its rows are read again beside them."""
        if name not in self._intent.tables:
            here, known = self.followed.position.to_json(), self.executor.context.state.tables.get(name)
            number = known.snapshot if known is not None else self.executor.snapshots.next_number(name)
            # What is not carried of a table is not carried of it under another name.
            former = self.followed.moved.get(name, name)
            table = self._altered.get(former) or self.executor.context.state.tables.get(former)
            self._intent.tables[name] = TableState(self.after.tables[name], here, here, number, table.hidden if table is not None else ())
        self._intent.prepared.add(name)
        self._intent.gone.discard(name)
        self._intent.beside.add(name)

    def _enter(self, name: TableName, kinds: Iterable[ChangeKind], found: DdlPlan, outcome: str, detail: str = "") -> None:
        followed = self.followed
        position, statement, translation = str(followed.position), followed.query.statement, "\n".join(found.statements)
        kind = ", ".join(kinds) or _OTHER
        self._intent.entries = [entry for entry in self._intent.entries if entry.source_table != str(name)] + [
            LedgerEntry(
                self.executor.context.settings.pipe_name, self._version, position, str(name), kind, statement, translation, outcome, detail
            )
        ]
        self.notes.append(f"{name} {_WORDS[outcome]}")

    def _check_reread(self) -> None:
        again = self._intent.reread | self._intent.beside
        if again and self.executor.request_resync is None:
            name = min(again)
            raise DefiniteError(
                f"the rows of {name} after this statement are in no log file: {self.followed.query.statement}",
                place=str(self.followed.position),
                hint="leave the table out with --exclude, or replicate from the server",
            )


_WORDS = {
    APPLIED: "follows",
    IGNORED: "stays as it is in the sink",
    KEPT: "is kept in the sink",
    READ_AGAIN: "will be read again",
}


def _kinds_of(seen: Alteration) -> list[ChangeKind]:
    """The kinds of changes that the sink would notice."""
    found: set[ChangeKind] = set()
    if any(fate.origin is None for fate in seen.fates):
        found.add(ChangeKind.ADD_COLUMN)
    if seen.dropped:
        found.add(ChangeKind.DROP_COLUMN)
    if any(fate.origin not in (None, fate.column.name) for fate in seen.fates):
        found.add(ChangeKind.RENAME_COLUMN)
    if any(fate.origin is not None and _is_modified(seen.before, fate) for fate in seen.fates):
        found.add(ChangeKind.MODIFY_COLUMN)
    if seen.moves_key:
        found.add(ChangeKind.CHANGE_KEY)
    return [kind for kind in ChangeKind if kind in found]


def _is_modified(before: TableSchema, fate: Fate) -> bool:
    """Whether a column holds other values, or other kinds of values, than before."""
    assert fate.origin is not None
    return not isinstance(fate.effect, Kept) or _material(before.column(fate.origin)) != _material(fate.column)


def _material(column: Column) -> tuple[object, ...]:
    return column.kind, column.nullable, column.precision, column.scale, column.members


def _without_left(seen: Alteration) -> Alteration:
    """Columns that are left as they are hold what they held."""
    fates = (replace(fate, effect=Kept()) if fate.origin in seen.left else fate for fate in seen.fates)
    return replace(seen, fates=tuple(fates))
