"""Pipes from Debezium's topics in Kafka to a ClickHouse sink."""
