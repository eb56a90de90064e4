"""Flakelog's main use, on real data: 336,776 flights get ids, a topology counts them, and Spark replays them exactly.

    load       every flight to the topic, and three messages that are not flights
    topology   delays by carrier, with failures on purpose, a kill -9 in the middle and a second start
    replay     the same figures by Spark, for a span of ids and over everything
    report     the results for people: table, plot, page
"""
