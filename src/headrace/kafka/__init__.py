"""Kafka: addresses, schemas, and mypipe's messages, for whoever reads or writes them."""
