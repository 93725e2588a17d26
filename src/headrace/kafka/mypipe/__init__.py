"""mypipe's message format: wire format, schemas, values and reader."""
