/* The id service: Twitter's Snowflake interface (snowflake-2010), framed binary protocol, port 7609, and get_ids.
 *
 * An error is a TApplicationException, of type INTERNAL_ERROR (6), whose message begins with its name:
 * InvalidUserAgent, InvalidCount, NoWorkerNumber, WorkerIdsExhausted, LeadExhausted, ClockMovedBackwards, Fenced,
 * LayoutExhausted. As in Twitter's file, the exceptions below are declared and no method throws them.
 */
namespace py flakelog_thrift
namespace java flakelog.thrift

exception InvalidSystemClock {
  1: string message,
}

exception InvalidUserAgentError {
  1: string message,
}

service Snowflake {
  i64 get_worker_id()
  i64 get_timestamp()
  i64 get_id(1:string useragent)
  i64 get_datacenter_id()

  /* `count` ids, rising; 1 to flakelog.ids.max.batch. */
  list<i64> get_ids(1:string useragent, 2:i32 count)
}
