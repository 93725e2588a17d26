"""An hour of chaos: live traffic and schema changes through every kind of pipe while processes are killed and connections are reset.

`python -m testkit.soak --seconds 3600 --seed N`; docs/reliability.md has the criteria and the figures of the last run.
"""
