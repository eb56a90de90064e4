"""The error of an operation that the cluster's state does not allow."""

from broker.client.errors import ClientError


class NotPossible(ClientError):
    """An operation that is not possible now; the message says why, and what to do."""
