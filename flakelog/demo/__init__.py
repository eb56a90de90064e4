"""The main job, on real data: 336,776 flights in, ids on, a topology over them, an exact replay out.

    load       every flight to the topic, and three messages that are none
    topology   delays by carrier, with failures on purpose, a kill -9 in the middle and a second start
    replay     the same figures by Spark, for a span of ids and over everything
    report     what people look at: table, plot, page
"""
