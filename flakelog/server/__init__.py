"""A server process put together: broker, id service, HTTP.

    starter.py         takes what a server needs, in an order in which each step can fail without damage
      bound_broker.py    the broker's bound sockets, and its metadata
      cluster_coordinator.py  where the brokers of a cluster meet: a ZooKeeper, or a directory of one machine
      cluster_part.py    in a cluster: the session, the registration, the connections to other brokers
      controlled_shutdown.py  at its stop: the controller moves what the broker leads
      broker_parts.py    the broker's logs and engine
      id_ports.py        the ports of ids and HTTP
      worker_numbers.py  the session with the registry, and the claims of worker numbers
    left_out_brokers.py  a check before a start of several processes
    server.py          the finished server, which the starter returns
    lifecycle.py       what was taken; a failed start and a stop release it, in one order
"""
