"""A configuration file as a document: values with their lines, substitution of variables, problems, and TOML output."""
