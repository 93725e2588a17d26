"""Real servers for tests: MySQL, MariaDB, Kafka, Cassandra, Debezium, Spark, a browser."""
