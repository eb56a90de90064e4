"""The replay job: an exact range as Parquet files, with a manifest and a receipt."""
