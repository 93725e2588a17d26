"""Sources of changes, one package per kind of source. No source imports a sink."""
