"""`spark.read.format("headrace")`: tables and changes as DataFrames."""
