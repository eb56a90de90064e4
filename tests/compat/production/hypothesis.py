"""Hides Hypothesis from the programs that the tests start, because users' machines do not have it.

kio would import it if it is there, which takes a third of the time in which a server starts.
"""

raise ImportError("Hypothesis is a package of the tests, and programs start without it")
