"""Encodes changes as Debezium's JSON envelopes."""
