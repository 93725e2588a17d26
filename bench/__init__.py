"""The benchmark: Headrace and its peers read one workload, and one run prints one table.

Every contender reads the same binary log of the same private server. It runs in a fresh process that the benchmark measures from outside.
Only the times of its first and last batch come from the contender itself.
"""
