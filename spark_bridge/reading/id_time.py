"""The column `id_time`: the time in a message's id, from the layout of the broker's ids (idgen.layout)."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_bridge.reading.id_clock import IdClock
from spark_bridge.reading.row import ARROW, ID, ID_TIME, arrow_schema


def id_times(ids: pa.Array, clock: IdClock) -> pa.Array:
    """Return the times at which the broker made the ids; null without an id."""
    known = ids.is_valid()
    after_epoch_ms = np.right_shift(ids.fill_null(0).to_numpy(zero_copy_only=False), clock.shift)
    times = pa.array((after_epoch_ms + clock.epoch_ms) * 1000)
    return pc.if_else(known, times, pa.scalar(None, pa.int64())).view(ARROW[ID_TIME])


def columns_to_decode(columns: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of the records that `columns` need: `id` in place of `id_time`."""
    return tuple(dict.fromkeys(ID if name == ID_TIME else name for name in columns))


def with_id_time(batch: pa.RecordBatch, columns: Sequence[str], clock: IdClock) -> pa.RecordBatch:
    """Return `columns` of a batch that has the columns of `columns_to_decode`."""
    if ID_TIME not in columns:
        return batch
    arrays = [id_times(batch.column(ID), clock) if name == ID_TIME else batch.column(name) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))
