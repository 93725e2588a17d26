"""Bulk encoder and decoder of Avro's binary encoding: compiled kernels run a schema's program over bodies and Arrow arrays."""
