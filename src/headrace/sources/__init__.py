"""Where changes come from. One package per kind of source; none knows of a sink."""
