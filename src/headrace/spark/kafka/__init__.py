"""Topics as a Spark stream, through Spark's Kafka connector."""
