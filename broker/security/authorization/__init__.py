"""Who may do what: access rules (ACLs), and the decisions that follow from them, without I/O."""
