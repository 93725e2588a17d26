"""The types of change data capture. Pure: no I/O, only the standard library and pyarrow."""
