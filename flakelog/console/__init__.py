"""The web console on the HTTP port: pages as functions of data, templates, and one thin Klein shell.

    security      who may see the console and use it
    text          keys, values, sizes and times as text
    overview, topics, groups, transactions, quotas, ids      models of pages, from the broker's own state
    messages, topologies, mirrors, replays, letters          models of pages, from records of topics
    history       figures over time, sampled while a page is open
    actions       changes that a visitor confirms, done by flakelog.operations
    own_client    a client of the broker in the same process, run in threads
    templates/    Jinja2, one file for a page; static/ has the style, the script, htmx and uPlot
    shell         the routes

The console reads figures from the broker's objects, and messages by its own listener, as every client does. It changes
things by the same listener, so that nothing it does passes by the broker's validation.
"""
