"""Help, manual pages and shell completion."""
