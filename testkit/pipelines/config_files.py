"""Files of pipes for tests."""

from __future__ import annotations

WHOLE = """\
[headrace]
state = "progress"
listen = ""
log = "json"
spark = { "spark.executor.memory" = "4g", "spark.cores.max" = 8 }

[sources.shop]
url = "mysql://repl:${SHOP_PASSWORD}@db:3307/shop?tls=required"
tables = ["orders", "billing.*"]
exclude = ["*_tmp"]
exclude_columns = ["shop.users.secret"]
zero_dates = "null"
flush_bytes = "64M"
flush_rows = 1000
relay_bytes = 1000000

[sources.events]
url = "kafka://${BROKERS}"
topics = ["shop.inventory.*"]
topic_tables = { "shop.inventory.o" = "inventory.orders" }
start = "latest"
versions = "source"

[sources.notes]
url = "scylla://reader@s1,s2:9043/app"
password_file = "scylla-password"
confidence = 5

[sinks.warehouse]
url = "clickhouse://ch:8123/"
password = "${file:ch-password}"
view = true
tables."shop.orders" = { engine = "history" }

[sinks.bus]
url = "kafka://k1:9092,k2:9092"
format = "debezium"
topic = "${db}.${table}.${ENVIRONMENT:-test}"

[pipes.orders]
source = "shop"
sink = "warehouse"
patience = 0
schema_changes = { drop_table = "keep" }
tables."shop.orders" = { sort_key = ["tenant", "id"] }
tables."shop.*" = { row_policy = true }

[pipes.orders-to-kafka]
source = "shop"
sink = "bus"
enabled = false
include = ["shop.orders"]

[pipes.events]
source = "events"
sink = "warehouse"

[sinks.cells]
url = "clickhouses://a,b/app"

[pipes.notes]
source = "notes"
sink = "cells"
"""


BASE = (
    '[sources.a]\nurl = "mysql://u@h/db"\n{source}\n[sinks.b]\nurl = "chdb:data"\n{sink}\n'
    '[pipes.p]\nsource = "a"\nsink = "b"\n{pipe}\n{more}\n'
)


def base(source: str = "", sink: str = "", pipe: str = "", more: str = "") -> str:
    return BASE.format(source=source, sink=sink, pipe=pipe, more=more)


SEVERAL = """\
[sources.east]
url = "mysql://u@east/shop"
[sources.west]
url = "mysql://u@west/shop"
[sinks.ch]
url = "clickhouse://ch/"
[sinks.bus]
url = "kafka://k:9092"
[pipes.shop]
sources = ["east", "west"]
sink = "{sink}"
{more}
"""


def several(sink: str = "ch", more: str = "") -> str:
    return SEVERAL.format(sink=sink, more=more)
