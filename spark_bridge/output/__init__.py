"""Files that a replay or a load writes: their bytes, and how they are published."""
