"""A cluster that speaks CQL, as a sink: the log's rows replayed, each cell with its own timestamp and expiry."""
