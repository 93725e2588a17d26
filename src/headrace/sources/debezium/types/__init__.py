"""Debezium's logical types and Connect schemas, converted to columns."""
