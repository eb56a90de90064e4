"""What protects a client's connections: TLS, the check of a broker's name, and the login by SASL.

The settings have the names of Kafka's clients. `client_security.ClientSecurity` is the one value that shells take.
"""
