"""Generated schemas, values, histories and workloads."""
