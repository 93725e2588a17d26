"""Independent references that results are compared with: the answers of servers, drivers and other libraries."""
