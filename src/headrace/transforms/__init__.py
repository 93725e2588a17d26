"""What is done to blocks on their way from a source to a sink: rows left out, columns computed, renamed, masked."""
