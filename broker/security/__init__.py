"""Who a peer is, how it logs in, what it may do, and what protects its connection; without I/O.

    principal_rules.py, distinguished_name.py    the name of a user, from a certificate
    listener_settings.py, tls_*.py, handshakes.py   TLS of a listener: settings, context, handshakes
    key_material.py, altered_tls.py              files of keys and trust, and their renewal while the server runs
    sasl/             logins by SCRAM, PLAIN and OAUTHBEARER
    authorization/    access rules (ACLs), the rights of a user, the audit log
"""
