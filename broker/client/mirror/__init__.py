"""A mirror copies the topics of a source cluster into a target cluster.

    source --Fetch--> consumer of a group --batches--> sender --Produce--> target
                           ^                                 |
                           +--- commit, after the acknowledgement of the target

`mirror` is the shell: one asyncio loop that runs a consumer and a sender. `owned_partitions` is the group's part of it:
partitions come and go. These modules do no I/O:

    names            which topics are copied, and their names at the target
    topic_settings   the settings with which a topic is made at the target
    source_batch     a record batch of the source, and the batch that is produced from it
    sender           the idempotent producer: sequence numbers, requests in flight, retries
    progress         what may be committed at the source, and the pairs of offsets
    offset_pairs     offsets of the source and of the target that belong together
    figures          lag, counts and rates by topic
    document         the figures as data for JSON, and as documents for web consoles
    orders           orders to pause, and to go on

Decisions:

1. **The mirror passes on whole record batches.** It changes only the header of a batch (producer id, epoch, sequence)
   and its CRC. So keys, headers, timestamps, order and compression stay, and the mirror unpacks nothing. A consumer and
   a librdkafka producer would make an object of each record, which takes over ten times as much CPU time. The mirror
   unpacks a batch and writes it anew only if it has to: records get a header, offsets are missing (compaction), the
   log set the times (LogAppendTime), or the copy begins in the middle of the batch.
2. **The producer is idempotent and our own.** librdkafka takes records, not batches. A partition has up to five batches
   in flight. After a failure the sender waits for the answers to all of them, and sends the rest again in their order,
   with the same sequence numbers, so that a retry makes no duplicate.
3. **Progress and pairs of offsets lie in the commit of the mirror's group at the source**, in its metadata. So they
   change together, no topic of its own is needed, and the next owner of a partition has both. The metadata also has
   the id of the topic. The mirror commits the same at the target, in a group of another name: a broker forgets the
   commits of a topic that is deleted, and so a topic that was made again while no mirror ran is found by its id there.
4. **A pair says that all records below an offset of the source are below an offset of the target.** A group at the
   source's offset continues at the target's without a gap. A group between two pairs takes the earlier one, as with
   MirrorMaker 2. There are at most 64 pairs. They lie the closer together, the nearer they are to the end of the log.
5. **The mirror's group is named after the mirror and the target's cluster id**, so that a mirror finds the mirrors in
   the opposite direction by their groups.
6. **Exactly once is a transactional id for each partition.** The group is at the source, so the target's coordinator
   cannot fence a mirror that has lost a partition (KIP-447). The id does: the next owner fences the former one before
   it reads where to go on. The sender is not used then: `transactional_copy` is a shell of its own.
"""
