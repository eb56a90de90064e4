"""The figures of a topology: what they are, who collects them, and their way to other processes.

    model       a snapshot of a topology, and rates between two
    collect     the snapshot of a run's executor; the parts of one that a task inside Storm has
    document    the document of a snapshot in __flakelog_topologies, and what to take from such documents
    publisher   SHELL: writes a process's documents
    published   the snapshot of a topology whose tasks are other processes, added up from their documents
    bolts_reader, topology_reader   SHELLs: read the documents, for a spout inside Storm and for the command line

People see them elsewhere: flakelog/topology_view.py, topology_site.py, topology_figures.py and the console render them.
"""
