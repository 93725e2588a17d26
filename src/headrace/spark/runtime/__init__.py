"""Runs tasks and micro-batches on Spark, on one machine or a cluster."""
