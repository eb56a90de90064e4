"""The transaction coordinator: the state machine of a transaction, all transactional ids, and their records. No I/O."""
