"""The commands of the command line: one module for each, or for a few that belong together.

A command parses its arguments, calls functions of flakelog.operations, and prints tables and JSON.
"""
