"""The benchmark: one workload, one run, one table, with Headrace and its peers side by side.

Every contender reads the same binary log of the same private server, in a fresh process that is measured from outside, so no figure
here rests on what a contender says about itself except the moment of its first and last batch.
"""
