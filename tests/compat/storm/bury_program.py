"""A program that writes one dead letter, and prints the answer and the number of letters written without their value.

    python bury_program.py SERVERS TOPIC VALUE-BYTES CODEC TIMESTAMP-MS
"""

import json
import random
import sys

from twisted.internet import reactor

from partition_manager.dead_letter_sink import TwistedDeadLetters
from partition_manager.ports import Bury, DeadLetter, FetchedRecord


def main(servers, topic, size, codec, timestamp_ms):
    sink = TwistedDeadLetters(servers, topic, reactor)
    value = random.Random(1).randbytes(int(size) // 4) * 4  # a codec makes a quarter of it
    record = FetchedRecord(7, 1007, int(timestamp_ms), b"key", value, (), int(codec))

    def answer(value):
        print(json.dumps([type(value).__name__, getattr(value, "error", ""), sink.without_value]))
        sink.close()
        reactor.callLater(0, reactor.stop)

    letter = DeadLetter("flights", 3, record, 1, "attempts", 5, "ValueError: no")
    reactor.callWhenRunning(sink.ask, Bury(letter), answer)
    reactor.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
