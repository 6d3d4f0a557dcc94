"""Public data sets, and generated ones, to parquet files with the columns that Laurel reads."""
