"""Clients of an id service: one core, one driver of its operations, and blocking, Twisted and asyncio shells."""
