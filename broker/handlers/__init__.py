"""Handlers, one module for each API: request -> response | Delayed."""
