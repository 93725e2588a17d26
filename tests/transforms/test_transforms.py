"""Transforms: allowed expressions, and their effect on tables and blocks."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from headrace.errors import DefiniteError
from headrace.model.alter_effects import Alteration, AlteredColumn, BackfillValue, Truncated, Unchanged, UnknownValues
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.schema import Column, Index, Kind, TableName, TableSchema
from headrace.settings.settings_file import UserSettings, parse_set_flag, parse_settings
from headrace.transforms.alteration import reread_reason, transform_alteration
from headrace.transforms.block_transform import BlockTransformer, filtered
from headrace.transforms.expressions import parse
from headrace.transforms.options import Salts, TransformOptions, Transforms
from headrace.transforms.transform_plan import find_name_conflicts, plan_transform
from testkit.generators.kind_values import block_of_rows

NAME = TableName("shop", "people")
PEOPLE = TableSchema(
    NAME,
    (
        Column("id", Kind.INT64, nullable=False, source_type="bigint", auto_increment=True),
        Column("email", Kind.STRING, source_type="varchar(200)", charset="utf8mb4"),
        Column("state", Kind.ENUM, nullable=False, members=("new", "paid", "gone")),
        Column("total", Kind.DECIMAL, precision=12, scale=2),
        Column("seen", Kind.DATETIME, precision=6),
        Column("worked", Kind.TIME),
        Column("huge", Kind.DECIMAL, precision=65, scale=30),
        Column("big", Kind.UINT64, nullable=False),
        Column("key", Kind.UUID),
    ),
    ("id",),
    (Index("mail", ("email",), unique=True), Index("states", ("state", "total"), unique=False)),
)


def chosen(**fields: Any) -> TransformOptions:
    pairs = {name: tuple(value.items()) if isinstance(value, dict) else value for name, value in fields.items()}
    return TransformOptions(**pairs)


def shaper(choices: TransformOptions, moving: tuple[str, ...] = ("id",), salt: str = "", *, whole: bool = True) -> BlockTransformer:
    fields = tuple((name, getattr(choices, name)) for name in TransformOptions.__slots__ if getattr(choices, name))
    made = BlockTransformer(Transforms((("shop.*", fields),)), Salts({"env:SALT": salt.encode()}), {NAME: moving}, whole)
    carried: BlockTransformer = pickle.loads(pickle.dumps(made))
    return carried


def people(rows: Sequence[dict[str, Any]], ops: Sequence[Op] = (), schema: TableSchema = PEOPLE) -> ChangeBlock:
    base = {"state": "new", "big": 2**64 - 1}
    given = [{"id": place, **base} | row for place, row in enumerate(rows)]
    values = [[row.get(column.name) for column in schema.columns] for row in given]
    count = len(rows)
    versions = range(100, 100 + count)
    return block_of_rows(schema, values, ops or [Op.SNAPSHOT] * count, versions=versions, commit_us=[7] * count, order=True)


# -- expressions


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("now() > seen", r"now\(\) gives another value"),
        ("random() < 0.5", r"random\(\) gives another value"),
        ("uuid()", "another value"),
        ("ago(INTERVAL 1 DAY)", r"may not be used"),
        ("age(seen)", r"age\(\) may not be used"),
        ("current_localtimestamp() > seen", r"current_localtimestamp\(\) may not be used"),
        ("current_localtime()", r"current_localtime\(\) may not be used"),
        ("hash(email)", r"hash\(\) may not be used"),
        ("sum(total)", "over many rows"),
        ("total > (SELECT 1)", "subquery"),
        ("row_number() OVER ()", "window"),
        ("total > ?", "parameter"),
        ("COLUMNS('t.*')", "star"),
        ("people.total", "names people.total"),
        ("total >", "no SQL expression"),
        ("1; DROP TABLE x", "no SQL expression|more than"),
        ("1) FROM (SELECT 1", "more than|no SQL"),
        ("", "empty"),
        ("lowr(email)", r"no function lowr\(\)"),
        ("unnest([1,2])", "may not be used"),
        ("current_setting('x')", "another value"),
        ("nextval('s')", "another value"),
        ("system.main.now()", "by a path"),
    ],
)
def test_what_may_not_be_in_an_expression(text: str, said: str) -> None:
    with pytest.raises(DefiniteError, match=said):
        parse(text)


def test_the_clock_by_another_name_is_no_column() -> None:
    for text in ("current_timestamp > seen", "current_date = seen", "localtimestamp = seen"):
        with pytest.raises(DefiniteError, match="no such column"):
            plan_transform(chosen(filter=text), PEOPLE)


def test_which_columns_an_expression_names() -> None:
    assert parse("""lower(email) LIKE '%@x' AND "weird name" IN (1, 2) -- a remark""").names == ("email", "weird name")
    assert parse("list_filter([total, big], lambda x: x > id)").names == ("total", "big", "id")
    assert parse("CASE WHEN a THEN nullif(b, 1) ELSE split_part(c, ',', 1) END").names == ("a", "b", "c")
    assert parse("doc->>'$.a'").names == ("doc",)
    assert parse("age(a, b)").names == ("a", "b")


# -- tables


def test_one_table_through_all_transforms() -> None:
    choices = chosen(
        filter="state <> 'gone'",
        computed={"day": "CAST(seen AS DATE)", "total": "total * 2", "label": "concat(state, '!')", "rich": "total > 5"},
        rename={"big": "large"},
        drop=("hug*",),
        mask={"worked": "null"},
        hash={"id": "sha256", "email": "number"},
    )
    shape = plan_transform(choices, PEOPLE)
    made = {column.name: column for column in shape.schema.columns}
    assert list(made) == ["id", "email", "state", "total", "seen", "worked", "large", "key", "day", "label", "rich"]
    assert (made["id"].kind, made["id"].nullable, made["id"].auto_increment) == (Kind.STRING, False, False)
    assert (made["email"].kind, made["email"].nullable) == (Kind.UINT64, True)
    assert (made["total"].kind, made["total"].scale, made["total"].nullable) == (Kind.DECIMAL, 2, True)
    assert (made["day"].kind, made["rich"].source_type) == (Kind.DATE, "tinyint(1)")
    assert (made["label"].kind, made["label"].nullable) == (Kind.STRING, False)
    assert shape.schema.primary_key == ("id",)
    # A 64-bit number does not identify e-mails uniquely.
    assert [(index.name, index.unique) for index in shape.schema.indexes] == [("mail", False), ("states", False)]
    assert shape.moving(("id", "day")) == ("id", "seen", "state")
    assert shape.moving(()) == ()
    assert not shape.keeps_key


def test_a_table_without_transforms_passes_as_it_is() -> None:
    shape = plan_transform(TransformOptions(), PEOPLE)
    assert shape.is_plain
    assert shape.schema is PEOPLE
    block = people([{}])
    assert shaper(TransformOptions())(block) is block


@pytest.mark.parametrize(
    ("choices", "said", "hint"),
    [
        (chosen(filter="stat = 'new'"), "filter names stat, and shop.people has no such column", "did you mean state"),
        (chosen(filter='email = "new"'), "names new", "single quotes|columns"),
        (chosen(filter="total + 1"), "not true or false", ""),
        (chosen(filter="huge > 1"), "65 digits", "leave it out"),
        (chosen(computed={"x": "big + id"}), "HUGEINT", "DECIMAL"),
        (chosen(computed={"x": "[1, 2]"}), r"INTEGER\[\]", "CAST"),
        (chosen(computed={"x": "NULL"}), "always NULL", "CAST"),
        (chosen(computed={"x": "worked"}), "INTERVAL", "CAST"),
        (chosen(computed={"x": "email + 1"}), "email", "CAST"),
        (chosen(computed={"id": "id + 1"}), "cannot be computed", "hash"),
        (chosen(mask={"id": "null"}), "cannot be masked", "hash"),
        (chosen(drop=("i*",)), "cannot be left out", ""),
        (chosen(hash={"id": "number"}), "two values may share", "sha256"),
        (chosen(mask={"email": "half"}), "'half' is no mask", "first N"),
        (chosen(hash={"email": "crc"}), "'crc' is no hash", "sha256"),
        (chosen(mask={"huge": "email", "email": "null"}, hash={"email": "md5"}), "both masked and hashed", ""),
        (chosen(rename={"email": "state"}), "would be called state", ""),
        (chosen(computed={"x": "1"}, rename={"email": "x"}), "would be called x", ""),
        (chosen(mask={"key": "empty"}), "no empty value", "null"),
    ],
)
def test_what_does_not_fit_a_table(choices: TransformOptions, said: str, hint: str) -> None:
    with pytest.raises(DefiniteError, match=said) as caught:
        plan_transform(choices, PEOPLE)
    assert "shop.people" in caught.value.place
    assert any(one in caught.value.hint for one in hint.split("|")), caught.value.hint


def test_a_key_that_is_only_an_index_stays_too() -> None:
    keyless = replace(PEOPLE, primary_key=(), indexes=(Index("one", ("big",), unique=True),))
    with pytest.raises(DefiniteError, match="column big"):
        plan_transform(chosen(mask={"big": "empty"}), keyless)
    assert plan_transform(chosen(rename={"big": "large"}), keyless).schema.row_key == ("large",)


def test_unknown_names_are_rejected() -> None:
    fields = (("mask", (("e_mail", "email"), ("email", "email"))), ("drop", ("secret_*",)))
    found = find_name_conflicts(Transforms((("shop.people", fields), ("shop.persons", ()), ("crm.*", ()))), [PEOPLE])
    assert [(one.message, one.hint, one.is_sure) for one in found] == [
        ("drop names secret_*, and shop.people has no such column", found[0].hint, False),
        ("mask names e_mail, and shop.people has no such column", "did you mean email?", True),
        ("no chosen table matches shop.persons", "did you mean shop.people?", True),
        ("no chosen table matches crm.*", found[3].hint, False),
    ]


# -- blocks


def test_values_through_expressions_hashes_and_masks() -> None:
    hour = 3_600_000_000
    rows = [
        {"email": "ann@example.com", "total": Decimal("10.50"), "worked": -30 * hour, "key": bytes(range(16))},
        {"email": None, "total": None, "state": "paid", "worked": 838 * hour, "huge": Decimal("1e-30")},
        {"email": "näh", "total": Decimal("-1.00"), "worked": None},
    ]
    choices = chosen(
        computed={
            "twice": "total * 2",
            "largest": "big",
            "overtime": "worked > INTERVAL '100 hours'",
            "hours": "epoch_us(worked) // 3600000000",
            "who": "upper(state) || coalesce(email, '?')",
            "uuid": "key",
            "always": "'x'",
        },
        hash={"id": "sha256", "total": "md5", "key": "number"},
        mask={"email": "email", "state": "last 2", "seen": "null", "worked": "text hidden"},
        hash_salt="env:SALT",
    )
    made = shaper(choices, salt="pepper")(people(rows))
    found = made.images.to_pydict()
    assert found["huge"] == [None, Decimal("1e-30"), None]
    assert found["big"] == found["largest"] == [2**64 - 1] * 3
    assert found["twice"] == [Decimal("21.00"), None, Decimal("-2.00")]
    assert found["overtime"] == [0, 1, None]
    assert found["hours"] == [-30, 838, None]
    assert found["who"] == ["NEWann@example.com", "PAID?", "NEWnäh"]
    assert found["uuid"] == ["00010203-0405-0607-0809-0a0b0c0d0e0f", None, None]
    assert found["always"] == ["x"] * 3
    assert found["id"] == [hashlib.sha256(f"pepper{place}".encode()).hexdigest() for place in range(3)]
    assert found["total"] == [hashlib.md5(b"pepper10.50").hexdigest(), None, hashlib.md5(b"pepper-1.00").hexdigest()]
    whole = hashlib.sha256(b"pepper00010203-0405-0607-0809-0a0b0c0d0e0f").digest()
    assert found["key"] == [int.from_bytes(whole[:8], "big"), None, None]
    assert found["email"] == ["a***@example.com", None, "***"]
    assert found["state"] == ["*ew", "**id", "*ew"]
    assert found["seen"] == [None] * 3
    assert found["worked"] == ["hidden", "hidden", None]
    assert made.version.to_pylist() == [100, 101, 102]


def test_masks_of_short_and_long_texts() -> None:
    rows = [{"email": text} for text in ("", "a", "ab", "abcdef", "äöü€𝄞x", None)]
    for mask, expected in {
        "last 2": ["", "*", "**", "****ef", "****𝄞x", None],
        "first 2": ["", "*", "**", "ab****", "äö****", None],
        "last 0": ["", "*", "**", "******", "******", None],
        "empty": ["", "", "", "", "", None],
        "text ": ["", "", "", "", "", None],
    }.items():
        assert shaper(chosen(mask={"email": mask}))(people(rows)).images.column("email").to_pylist() == expected, mask


N, U, D, B, S = Op.INSERT, Op.UPDATE, Op.DELETE, Op.BEFORE, Op.SNAPSHOT


def test_an_update_across_the_filter() -> None:
    op = np.array([S, S, N, B, U, B, U, B, U, B, U, U, U, D, D], dtype=np.uint8)
    #                       both   leaves enters neither lone
    passing = np.array([1, 0, 1, 1, 1, 1, 0, 0, 1, 0, 0, 1, 0, 1, 0], dtype=bool)
    kept, made = filtered(op, passing, whole=True)
    assert [Op(one) for one in made[kept]] == [S, N, B, U, D, N, U, D]
    kept, made = filtered(op, passing, whole=False)
    # The row before may be unknown: delete what may be in the sink.
    assert [Op(one) for one in made[kept]] == [S, N, B, U, D, B, U, D, U, D, D, D]


def test_a_filter_over_a_block() -> None:
    rows = [
        {"id": 1, "state": "gone"},
        {"id": 2, "state": "paid", "email": "b"},
        {"id": 2, "state": "gone", "email": "c"},
        {"id": 3, "state": "gone"},
        {"id": 3, "state": "new"},
        {"id": 4, "state": "new"},
        {"id": 4, "state": "paid"},
        {"id": 5, "state": "new"},
        {"id": 6, "state": "new"},
    ]
    block = people(rows, [N, B, U, B, U, B, U, B, U])
    made = shaper(chosen(filter="state <> 'gone'"))(block)
    found = list(zip(made.images.column("id").to_pylist(), made.op.to_pylist(), made.version.to_pylist(), strict=True))
    # The fourth row keeps its key: the sink does not need its before image, which only the filter requested.
    assert found == [(2, D, 101), (3, N, 104), (4, U, 106), (5, B, 107), (6, U, 108)]
    assert made.order is not None
    assert made.order.to_pylist() == [1, 4, 6, 7, 8]
    every = shaper(chosen(filter="state <> 'gone'"), moving=())(block)
    assert every.op.to_pylist() == [D, N, B, U, B, U]
    nothing = shaper(chosen(filter="false"))(block)
    assert (nothing.rows, nothing.changes, nothing.newest) == (0, 0, 0)


def test_a_row_at_which_an_expression_fails() -> None:
    rows = [{"email": str(place)} for place in range(1000)] + [{"id": 77, "email": "oops"}] + [{"email": "x"}]
    with pytest.raises(DefiniteError, match=r"CAST\(email AS INT\).*'oops'") as caught:
        shaper(chosen(computed={"n": "CAST(email AS INT)"}))(people(rows))
    assert "shop.people, transforms: computed.n, row id=77," in caught.value.place
    assert "TRY_CAST" in caught.value.hint
    assert caught.value.event == ""
    with pytest.raises(DefiniteError) as caught:
        shaper(chosen(computed={"n": "CAST(email AS INT)"}))(people(rows, [Op.INSERT] * len(rows)))
    # The arguments of `headrace skip`.
    assert caught.value.event == "row 1100"
    with pytest.raises(DefiniteError, match="oops") as caught:
        shaper(chosen(filter="CAST(email AS INT) > 1"))(people(rows))
    assert "row id=77" in caught.value.place
    # An error does not show masked values or hashed keys either.
    with pytest.raises(DefiniteError, match="not shown here") as caught:
        shaper(chosen(filter="CAST(email AS INT) > 1", mask={"email": "null"}, hash={"id": "sha256"}))(people(rows))
    assert "oops" not in str(caught.value) + caught.value.place
    assert "77" not in caught.value.place.split("log file")[0]
    tried = shaper(chosen(computed={"n": "TRY_CAST(email AS INT)"}))(people(rows))
    assert tried.images.column("n").null_count == 2


def test_expressions_run_only_on_rows_that_pass_the_filter() -> None:
    rows = [{"email": "1"}, {"email": "x", "state": "gone"}]
    made = shaper(chosen(filter="state <> 'gone'", computed={"n": "CAST(email AS INT)"}))(people(rows))
    assert made.images.column("n").to_pylist() == [1]


# -- alterations


def altered(after: TableSchema, altered_columns: dict[str, tuple[str | None, Any]] | None = None) -> Alteration:
    given = altered_columns or {}
    made = tuple(AlteredColumn(column, *given.get(column.name, (column.name, Unchanged()))) for column in after.columns)
    return Alteration(PEOPLE, after, made)


def seen(choices: TransformOptions, change: Alteration) -> dict[str, AlteredColumn]:
    found = transform_alteration(change, plan_transform(choices, change.before), plan_transform(choices, change.after))
    return {altered_column.column.name: altered_column for altered_column in found.altered_columns}


def with_column(name: str, column: Column) -> TableSchema:
    return replace(PEOPLE, columns=tuple(column if one.name == name else one for one in PEOPLE.columns))


def test_alterations_as_the_sink_sees_them() -> None:
    choices = chosen(
        computed={"day": "CAST(seen AS DATE)"}, hash={"email": "sha256", "total": "md5"}, rename={"big": "large"}, drop=("huge",)
    )
    longer = with_column("email", replace(PEOPLE.column("email"), source_type="varchar(400)"))
    altered_columns = seen(choices, altered(longer))
    assert (altered_columns["email"].effect, altered_columns["large"].origin, altered_columns["day"]) == (
        Unchanged(),
        "large",
        AlteredColumn(altered_columns["day"].column, "day", Unchanged()),
    )
    # Another scale changes the text of a decimal, and so its hash.
    finer = with_column("total", replace(PEOPLE.column("total"), scale=4))
    assert isinstance(seen(choices, altered(finer))["total"].effect, UnknownValues)
    cut = altered(longer, {"email": ("email", Truncated(10))})
    assert isinstance(seen(choices, cut)["email"].effect, UnknownValues)
    coarser = with_column("seen", replace(PEOPLE.column("seen"), precision=0))
    assert isinstance(seen(choices, altered(coarser))["day"].effect, UnknownValues)
    more = replace(PEOPLE, columns=(*PEOPLE.columns, Column("extra", Kind.INT32)))
    altered_columns = seen(choices, altered(more, {"extra": (None, BackfillValue(5))}))
    assert altered_columns["extra"] == AlteredColumn(Column("extra", Kind.INT32), None, BackfillValue(5))
    hashed = seen(chosen(hash={"extra": "md5"}), altered(more, {"extra": (None, BackfillValue(None))}))
    assert hashed["extra"].effect == BackfillValue(None)
    assert isinstance(
        seen(chosen(hash={"extra": "md5"}), altered(more, {"extra": (None, BackfillValue(5))}))["extra"].effect, UnknownValues
    )


def test_renaming_a_masked_column_does_not_reveal_it() -> None:
    renamed = with_column("email", replace(PEOPLE.column("email"), name="mail"))
    renamed = replace(renamed, indexes=())
    change = altered(renamed, {"mail": ("email", Unchanged())})
    for choices in (chosen(mask={"email": "null"}), chosen(hash={"email": "md5"}), chosen(drop=("e*",))):
        with pytest.raises(DefiniteError, match=r"email of shop\.people is called mail now"):
            seen(choices, change)
    with pytest.raises(DefiniteError, match="names email"):
        seen(chosen(filter="email IS NOT NULL"), change)
    assert seen(chosen(mask={"total": "null"}), change)["mail"].origin == "email"
    assert "huge" not in seen(chosen(drop=("*mail", "huge")), change)


def test_an_alteration_that_may_move_rows_across_the_filter() -> None:
    choices = chosen(filter="email LIKE 'a%'")

    def reason(change: Alteration) -> str:
        return reread_reason(change, plan_transform(choices, change.before), plan_transform(choices, change.after))

    assert reason(altered(with_column("total", replace(PEOPLE.column("total"), scale=3)))) == ""
    longer = with_column("email", replace(PEOPLE.column("email"), source_type="varchar(400)"))
    assert reason(altered(longer)) == ""
    assert "email" in reason(altered(longer, {"email": ("email", Truncated(3))}))


# -- settings

TOML = """
[transforms."shop.*"]
drop = ["secret_*"]
mask = { phone = "last 4" }

[transforms."shop.orders"]
filter = "state <> 'gone'"
drop = ["note"]
hash_salt = "env:SALT"
[transforms."shop.orders".computed]
day = "CAST(seen AS DATE)"
[transforms."shop.orders".hash]
email = "sha256"
"""


def test_settings_of_transforms() -> None:
    transforms = parse_settings(TOML, "pipe.toml").transforms
    orders = transforms.of(TableName("shop", "orders"))
    assert orders == chosen(
        filter="state <> 'gone'",
        computed={"day": "CAST(seen AS DATE)"},
        drop=("secret_*", "note"),
        mask={"phone": "last 4"},
        hash={"email": "sha256"},
        hash_salt="env:SALT",
    )
    assert transforms.of(TableName("shop", "people")) == chosen(drop=("secret_*",), mask={"phone": "last 4"})
    assert transforms.of(TableName("crm", "people")).is_empty
    flag = parse_set_flag('transforms."shop.orders".filter=total = 1')
    assert flag.over(UserSettings({})).transforms.of(TableName("shop", "orders")).filter == "total = 1"


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ('[transforms."shop.o"]\nfilter = "now() > a"', "line 2, transforms.shop.o.filter", "another value"),
        ('[transforms."shop.o"]\n\n[transforms."shop.o".computed]\nx = "1 +"', "line 4, transforms.shop.o.computed.x", "no SQL expression"),
        ('[transforms."shop.o".mask]\nx = "some"', "line 2, transforms.shop.o.mask.x", "no mask"),
        ('[transforms."shop.o"]\nhash_salt = "s3cret"', "line 2", "where the secret is"),
        ('[transforms."shop.o"]\nfilters = "a"', "line 2", "no setting 'filters'"),
        ("[transforms.orders]\nfilter = 'a'", "transforms.orders", "glob"),
    ],
)
def test_wrong_settings_of_transforms(text: str, place: str, said: str) -> None:
    with pytest.raises(DefiniteError, match=said) as caught:
        parse_settings(text, "pipe.toml")
    assert place in caught.value.place
    assert "s3cret" not in str(caught.value)


def test_the_order_of_names_does_not_change_the_transforms() -> None:
    one = chosen(mask={"a": "null", "b": "email"}, drop=("x", "y"), hash={"c": "md5"}, hash_salt="env:A")
    assert one.makes_the_same(chosen(mask={"b": "email", "a": "null"}, drop=("y", "x"), hash={"c": "md5"}, hash_salt="file:b"))
    assert not one.makes_the_same(chosen(mask={"b": "null", "a": "email"}, drop=("x", "y"), hash={"c": "md5"}, hash_salt="env:A"))
    assert not one.makes_the_same(chosen(mask={"a": "null", "b": "email"}, drop=("x",), hash={"c": "md5"}, hash_salt="env:A"))
