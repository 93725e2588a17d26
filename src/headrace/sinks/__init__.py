"""The systems that changes go to. `base` states the port and its contract; `registry` lists the sinks."""
