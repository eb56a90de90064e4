"""The clients of id services with TLS by Kafka's client settings. The clients themselves are in `idgen.client`.

They are not there, because `idgen` stands below the broker's client, which reads these settings.
"""
