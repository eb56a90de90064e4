"""The engine and what it is made of: the API table, connections, turns, requests that wait."""
