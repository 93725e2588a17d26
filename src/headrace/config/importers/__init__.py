"""Files of other tools, in the words of `headrace.toml`: mypipe's, Debezium's, and those of Altinity's sink connector."""
