/* The id service: Twitter's Snowflake interface (snowflake-2010) over the framed binary protocol, port 7609, with
 * methods that its users asked for since: many ids at once, the ids of a time span, the parts of an id.
 *
 * An error is a TApplicationException, of type INTERNAL_ERROR (6), whose message begins with its name:
 * InvalidUserAgent, InvalidCount, InvalidId, InvalidTimeRange, NoWorkerNumber, WorkerIdsExhausted, LeadExhausted,
 * ClockMovedBackwards, Fenced, LayoutExhausted. As in Twitter's file, the exceptions below are declared and no method throws them.
 */
namespace py flakelog_thrift
namespace java flakelog.thrift

exception InvalidSystemClock {
  1: string message,
}

exception InvalidUserAgentError {
  1: string message,
}

/* The ids of a time span: those with first_id <= id < end_id. */
struct IdRange {
  1: i64 first_id,
  2: i64 end_id,
}

/* The parts of an id; time_ms is Unix time, worker_number is datacenter and worker as one number. */
struct IdParts {
  1: i64 time_ms,
  2: i64 datacenter,
  3: i64 worker,
  4: i64 sequence,
  5: i64 worker_number,
}

service Snowflake {
  i64 get_worker_id()
  i64 get_timestamp()
  i64 get_id(1:string useragent)
  i64 get_datacenter_id()

  /* `count` ascending ids; 1 to flakelog.ids.max.batch. */
  list<i64> get_ids(1:string useragent, 2:i32 count)

  /* The ids of start_ms <= time < end_ms, Unix ms, by the service's layout. */
  IdRange get_id_range(1:i64 start_ms, 2:i64 end_ms)

  IdParts decode_id(1:i64 id)
}
