"""Every error that a request can be answered with: the API, the code, the versions that know it, and its cause.

tests/broker/test_every_error.py asks an engine for them, and tests/compat/clients/test_errors_as_kafka.py asks Apache
Kafka.
`kafka` is Kafka's code if it differs on purpose; a comment gives the reason. `inside` marks errors that no client can
cause (a failing disk, a limit that is set low), so Kafka is not asked.
"""

from tests.broker.every_error.groups import GROUPS
from tests.broker.every_error.node import NODE
from tests.broker.every_error.produce import PRODUCE
from tests.broker.every_error.reads import READS
from tests.broker.every_error.rights import RIGHTS
from tests.broker.every_error.topics import TOPICS
from tests.broker.every_error.transactions import TRANSACTED

CASES = [*PRODUCE, *READS, *TOPICS, *GROUPS, *TRANSACTED, *NODE, *RIGHTS]
