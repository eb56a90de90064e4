"""The services that handlers work on: metadata, coordinators, fetch sessions, administration of topics."""
