"""The transaction coordinator: one transaction's state machine, all transactional ids, their records. No I/O."""
