"""The only place that imports pyspark: the session, the streaming data source, the micro-batch loop."""
