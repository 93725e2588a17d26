"""Avro's binary encoding, in bulk: bodies of one schema to Arrow arrays and back, by compiled code that a schema's program drives."""
