"""One partition's progress: pending, failed, emitted, committed."""
