"""What `headrace config` prints: the JSON schema, the reference page, and the resolved configuration."""
