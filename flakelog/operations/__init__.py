"""The operations on a cluster, one module for each noun: list, describe and change it.

Each function takes a blocking client and returns values. It raises BrokerError for a refused request, with the broker's
message if the API has a field for it. The command line, the console's actions and `Admin` parse arguments, call these
functions, and render their results.

    with Client(servers) as client:
        groups.list_groups(client)

    cluster, configs, groups, mirrors, partitions, quotas, replays, topics, transactions
    group_reset         the plan of a reset of a group's offsets, and its execution
    registry            groups in ZooKeeper, as early Kafka's consumers have them; it takes a session with ZooKeeper too
    letters             dead letters; dead_letters has the record of one, handled_letters the marks of those sent back
    errors              an operation that is not possible now
"""
