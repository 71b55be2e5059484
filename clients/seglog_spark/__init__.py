"""seglog as a Spark data source."""
