"""The spouts and bolts of a topology as subprocesses of Apache Storm, by its multilang protocol.

    python -m spout.multilang MODULE:TOPOLOGY COMPONENT

Storm starts this command once for each task of a component, and talks to it by JSON on stdin and stdout
(https://storm.apache.org/releases/2.8.1/Multilang-protocol.html). Storm is the engine: it routes tuples, tracks their
trees and times them out. The process has one spout or one bolt, with the same classes as in the embedded engine.
"""
