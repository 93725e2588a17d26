"""The output of `headrace config`: JSON schema, reference page and resolved configuration."""
