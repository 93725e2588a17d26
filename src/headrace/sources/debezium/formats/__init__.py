"""Event formats: JSON and Avro, enveloped and flat."""
