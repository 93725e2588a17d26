"""What all kinds of pipes share: base class, sink access, progress, lag, schema-change intents."""
