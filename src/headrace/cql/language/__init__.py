"""CQL text: lexer, DDL parser and printer, literals and value encoding."""
