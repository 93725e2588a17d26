"""Debezium's change events, from Kafka records to change blocks."""
