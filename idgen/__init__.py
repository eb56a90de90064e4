"""The Snowflake service: 64-bit ids, k-sorted, unique within one registry."""
