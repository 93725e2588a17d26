"""Changes to Kafka: mypipe's Avro messages and Debezium's JSON envelopes."""
