"""Metadata: the image of what the controller decided, the controller of a server alone with its file, and changes."""
