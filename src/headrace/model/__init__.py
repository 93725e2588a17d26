"""The words of change data capture, pure: no I/O, nothing but the standard library and pyarrow."""
