"""Independent witnesses: the answers of servers, drivers and other libraries that results are compared with."""
