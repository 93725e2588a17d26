"""Starts and configures the Spark session."""
