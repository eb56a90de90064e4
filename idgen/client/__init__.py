"""Clients of an id service: one core; blocking, Twisted and asyncio shells."""
