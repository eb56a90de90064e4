"""The Python Data Source: reads and writes by Spark."""
