"""Who reads the log, in the order of the table."""

from __future__ import annotations

from bench.contenders.base import Contender, Reader
from bench.contenders.debezium import Debezium
from bench.contenders.mysql_replication import MysqlReplication
from bench.contenders.mysqlbinlog import DecodeToText, RawCopy

READERS: dict[str, Reader] = {"mysql-replication": MysqlReplication(), "debezium": Debezium()}
CONTENDERS: dict[str, Contender] = {"floor": RawCopy(), "mysqlbinlog": DecodeToText(), **READERS}
