"""Kafka messages: options, topics, keys, delivery and errors."""
