"""Opcodes and table layouts shared by Avro programs and the compiled kernels.

A program is a flat table of steps of four numbers: an opcode and up to three operands. A column is a line of numbers: its buffers and its
level. A level is a run of values that grow together: level 0 holds the records, each other level the items of an array or the entries of a
map, of all records in sequence.
"""

from __future__ import annotations

from typing import Final

STEP: Final = 4

# Decoder steps. a is a column unless noted otherwise.
(
    END,
    INT,  # a number of 32 bits, kept in 4 bytes
    INT_AS_LONG,
    LONG,
    INT_AS_FLOAT,
    INT_AS_DOUBLE,
    LONG_AS_FLOAT,
    LONG_AS_DOUBLE,
    FLOAT,
    FLOAT_AS_DOUBLE,
    DOUBLE,
    BOOLEAN,
    STRING,  # text, checked to be UTF-8
    BYTES,
    FIXED,  # b: bytes
    ENUM,  # b: where the table of the reader's symbols begins; c: the writer's number of symbols
    NULL,  # the column holds nothing here
    BRANCH,  # a: branches; as many steps JUMP follow
    JUMP,  # a: the step to go on at
    FAIL,  # a: the reason
    LOOP,  # a: column or -1; b: the step after the loop; c: its depth. Begins an array or a map; LEAST follows
    ITEM,  # a: column or -1; b: its LOOP; c: its depth. Ends an item
    LEAST,  # a: the fewest bytes that an item takes
    SKIP_NUMBER,
    SKIP_RUN,
    SKIP_BYTES,  # a: how many
    CONSTANT,  # a: where it begins among the constants; b: its end. Reads from there
    MESSAGE,  # reads from the record again
) = range(28)

# A column's line.
C_LEVEL, C_VALUES, C_VALIDITY, C_DATA, C_DATA_SIZE, C_WIDTH, C_NULLS, C_ITEMS = range(8)
C_LINE: Final = 8
"""C_WIDTH: bytes of a value, or one of the words below; C_ITEMS: the level of an array's items; C_DATA_SIZE: bytes of room for data."""
W_NOTHING, W_RUN, W_LIST = 0, -1, -2
"""Widths of columns without values, with runs of bytes, and with arrays or maps."""

# A level's line.
L_COUNT, L_ROOM = range(2)
L_LINE: Final = 2

# Cells of the state of reading and writing.
AT, STATUS, ROOM_OF, ROOM_NEEDED = range(4)
STATE: Final = 4
DONE, LEVEL_FULL, DATA_FULL, WRONG = range(4)

# What is wrong with a record.
(
    FINE,
    ABSENT,
    TRUNCATED,
    NUMBER_TOO_LONG,
    INT_TOO_LARGE,
    BAD_LENGTH,
    BAD_TEXT,
    BAD_BRANCH,
    BAD_SYMBOL,
    BAD_BOOLEAN,
    LEFT_OVER,
    UNREADABLE_BRANCH,
    TOO_MANY_ITEMS,
) = range(13)
MOST_EMPTY_ITEMS: Final = 1 << 20
"""How many items that take no bytes a record may have: nothing else would bound them."""

# Encoder steps. a is a column unless noted otherwise.
(
    W_END,
    W_INT,  # from 4 bytes
    W_LONG,
    W_RAW,  # b: bytes, as they are
    W_BOOLEAN,
    W_BYTES,
    W_CONSTANT,  # a: where it begins among the constants; b: its end
    W_IF_NULL,  # b: the step to go on at if there is no value
    W_JUMP,  # a: the step to go on at
    W_TALLY,  # one more entry if there is a value
    W_ENTRIES,  # a: entries that are always there; b: the step after the map, if there are none
) = range(11)
