"""Encodes changes as mypipe's Avro messages."""
