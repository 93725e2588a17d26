"""Rows that are merged from ScyllaDB cells when they are written, so that queries need not merge cells."""
